"""Draw from a checkpoint: ``python sample.py checkpoint=RUN_OR_FILE [n=64 seed=0 labels=0,1 out=grid.png|folder|set.npz]``."""

import inspect
import sys

from training import cli


def job(values):
    """One set of samples; imported late, so that a typo is answered before torch is loaded."""
    from training.draw import sample

    return sample(values)


def usage():
    """What ``--help`` prints."""
    from training.draw import SampleScriptOptions

    return f"{__doc__}\n\n{inspect.getdoc(SampleScriptOptions)}"


if __name__ == "__main__":
    sys.exit(cli.simple_main(job, usage))
