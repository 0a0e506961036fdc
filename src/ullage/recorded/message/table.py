"""All wordings that are known, and those of each text that is searched for."""

from typing import Final

from ullage.recorded.message import program_wording, wording
from ullage.recorded.message.wording import Words

TABLE: Final = (*program_wording.TABLE, *wording.TABLE)
"""All wordings. The first that fits counts where two begin with the same words, so a program's own go before."""
BY_FIND: Final[dict[str, tuple[Words, ...]]] = {
    find: tuple(words for words in TABLE if words.find == find) for find in dict.fromkeys(words.find for words in TABLE)
}
