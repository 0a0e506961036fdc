"""The entry point of the command `ullage`.

It handles Ctrl-C before it imports the other modules, because these imports take a third of a second.
"""

from ullage.cli.interruption import end_at_once, told_in_one_sentence


def main() -> None:
    """Run the command line."""
    try:
        with told_in_one_sentence():
            from ullage.cli.app import main as run

            run()
    finally:
        end_at_once()
