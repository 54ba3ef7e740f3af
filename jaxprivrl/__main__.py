"""`python -m jaxprivrl` and the command `jaxprivrl`."""

import sys


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; the heavy imports happen inside the command that needs them."""
    from jaxprivrl.cli import run

    return run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
