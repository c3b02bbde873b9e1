"""`python -m cowslip` and the script `cowslip`: the command of the package."""

import os
import sys

from ._binaries import command


def main() -> None:
    try:
        path = command()
    except Exception as error:
        sys.exit(f"cowslip: {error}")
    os.execv(path, ["cowslip", *sys.argv[1:]])


if __name__ == "__main__":
    main()
