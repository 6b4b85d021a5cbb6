"""One idea a file."""

from __future__ import annotations

from tests.architecture.sources import ROOT, name_of

LONGEST = 500


def test_no_file_is_longer_than_the_limit() -> None:
    files = [path for folder in ("app", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 50
    lengths = {name_of(path): len(path.read_text("utf-8").splitlines()) for path in files}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}
