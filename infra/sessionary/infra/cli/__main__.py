"""`python -m sessionary.infra.cli`: the same as `sessionary`."""

from sessionary.infra.cli.entry import main

if __name__ == "__main__":
    main()
