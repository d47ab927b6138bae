"""Score a checkpoint: ``python evaluate.py checkpoint=RUN_OR_FILE [metrics=[fid,kid,is,pr] samples=50000 all=true]``."""

import inspect
import sys

from training import cli


def job(values):
    """One evaluation; imported late, so that a typo is answered before torch is loaded."""
    from training.measure import measure

    return measure(values)


def usage():
    """What ``--help`` prints."""
    from training.measure import EvaluateScriptOptions, choices

    return f"{__doc__}\n\n{inspect.getdoc(EvaluateScriptOptions)}\n\n{choices()}"


if __name__ == "__main__":
    sys.exit(cli.simple_main(job, usage))
