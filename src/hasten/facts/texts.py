"""Text that others wrote, such as the message of an error in a user's code: fit to be kept, printed and read."""

from __future__ import annotations

import re
import unicodedata

HIDDEN = "[hidden]"

# What services give out as keys begins so, as their documentation says; passwords stand in URLs (RFC 3986, userinfo).
_SECRETS = re.compile(
    r"(?<=://)[^\s/@:]*:[^\s/@]+(?=@)"
    r"|(?<![\w./-])(?:"  # and not inside a name or a path
    r"gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,}|glpat-[\w-]{20,}"  # GitHub, GitLab
    r"|hf_[A-Za-z0-9]{30,}|sk-(?:proj|ant|svcacct)-[\w-]{20,}|sk-[A-Za-z0-9]{32,}"  # Hugging Face; OpenAI, Anthropic
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{35}|xox[abprs]-[\w-]{10,}"  # Amazon, Google, Slack
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}"  # JSON Web Token, RFC 7519
    r")|(?<=\bBearer )[\w.~+/-]{16,}=*"
)


def printable(text: str) -> str:
    """The text on one line, without secrets that can be told by their shape, and without characters that a terminal
    obeys or that change how others are shown.

    Secrets are passwords in URLs and the keys of widely used services. Control characters (Cc), format characters such
    as those for writing direction (Cf), lone surrogates (Cs) and the line and paragraph separators (Zl, Zp) are left
    out; a line break or a tab becomes a space.
    """
    spaced = "".join(" " if character in "\n\r\t" else character for character in text)
    shown = "".join(item for item in spaced if unicodedata.category(item) not in ("Cc", "Cf", "Cs", "Zl", "Zp"))
    return _SECRETS.sub(HIDDEN, shown)


def shortened(text: str, most: int) -> str:
    """The text with at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
