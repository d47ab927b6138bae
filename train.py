"""Train a GAN: ``python train.py gan=r3gan dataset=cifar10 [option=value …]``; ``--help`` lists every option."""

import sys

from training import cli


def job(values, arguments):
    """One run; imported late, so that a typo is answered before torch is loaded."""
    from training.main import train

    return train(values, arguments)


if __name__ == "__main__":
    sys.exit(cli.main(job))
