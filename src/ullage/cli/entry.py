"""Where the command `ullage` begins: Ctrl-C is heard before all else is loaded, which takes a third of a second."""

import sys

from ullage.cli.interruption import end_at_once, told_in_one_sentence


def main() -> None:
    """Run the command line."""
    is_large = False
    try:
        with told_in_one_sentence():
            if sys.argv[1:2] == ["explain"]:
                from ullage.cli.large_snapshot import read_ahead_of

                is_large = read_ahead_of(sys.argv[2:])
            from ullage.cli.app import main as run

            run()
    except SystemExit as end:
        if is_large:
            from ullage.cli.large_snapshot import end_without_freeing

            end_without_freeing(end)
        raise
    finally:
        end_at_once()
