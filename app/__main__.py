"""`python -m app` and the `draftscope` command."""

from __future__ import annotations


def main() -> None:
    from app.cli import cli

    cli()


if __name__ == "__main__":
    main()
