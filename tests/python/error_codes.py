"""The codes of shardwise's errors, [SW0123]."""
import re


def without_code(text):
    """Returns what the program printed, without the code at the end of each error."""
    return re.sub(r" \[SW\d{4}\]$", "", text, flags=re.MULTILINE)
