"""The one exception every floor may raise when the *user* can mend what went wrong."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """A mistake of the user's: which option or file, what was found, what is allowed, in one line.

    The scripts print it as ``error: …`` without a stack trace and leave with exit status 2. Anything else that is raised
    is a bug of ours and keeps its stack trace.
    """


def nearest(name: str, allowed: Iterable[str]) -> str:
    """A hint for a misspelt ``name``: ``did you mean 'x'?`` if something is close, else the allowed names."""
    allowed = sorted(map(str, allowed))
    close = get_close_matches(str(name), allowed, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return "allowed: " + (", ".join(allowed) if allowed else "none")
