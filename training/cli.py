"""From the command line to a checked config. Hydra composes, our schema checks, users read one line.

Hydra's own checks have a hole (``+key=value``) and messages of many lines, so every plain override is handed to it as
``++key=value`` and the composed config is checked once, by ``training.config``. Its application around ``main`` is not used:
it would leave a log and multirun.yaml in the working folder.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from errors import UserError, nearest

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
PATHS = ("run_dir", "resume", "dataset.path", "dataset.download_dir", "dataset.cache", "eval.cache")
# of the scripts' options, never numbers even if they look like one
TEXT = ("checkpoint", "out", "device", "compare", "cache", "inception_weights", "vgg_weights", *PATHS)
FLAGS = {"-h": "help", "--help": "help", "-m": "multirun", "--multirun": "multirun", "-c": "cfg", "--cfg": "cfg"}


@dataclass
class Arguments:
    """A parsed command line.

    overrides  what Hydra gets.      explicit  full names of options typed.     chosen  groups chosen, name -> value.
    """

    overrides: list[str] = field(default_factory=list)
    explicit: list[str] = field(default_factory=list)
    chosen: dict[str, str] = field(default_factory=dict)


def groups() -> dict[str, list[str]]:
    """Config groups and their choices, from the folders of configs/."""
    return {d.name: sorted(f.stem for f in d.glob("*.yaml")) for d in sorted(CONFIGS.iterdir()) if d.is_dir()}


def group_values(group: str, choice: str) -> dict[str, Any]:
    """What configs/<group>/<choice>.yaml states for its group alone (a model's file also states its training: left out)."""
    import yaml

    values = yaml.safe_load((CONFIGS / group / f"{choice}.yaml").read_text()) or {}
    return values if "name" in values and group != "gan" else {}


def parse(argv: Sequence[str]) -> Arguments:
    """Read ``key=value`` arguments; UserError for anything of another form or a group's unknown choice."""
    arguments, choices = Arguments(), groups()
    seen: dict[str, str] = {}
    for argument in argv:
        removed = argument.startswith("~")
        name, equals, value = argument.lstrip("~+").partition("=")
        if not name or not equals and not removed:
            raise UserError(f"{argument}: arguments have the form option=value, for example batch_size=64")
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[\w-]+)*", name):
            raise UserError(f"{argument}: '{name}' is not an option name")
        if name.split(".")[0] == "hydra":
            raise UserError(f"{argument}: Hydra's own settings are fixed here; options are those of --help")
        if name in seen:
            raise UserError(f"{argument}: {name} is given twice, first as {seen[name]}")
        seen[name] = argument
        if name in choices:
            none = ["null"] if name == "recipe" else []
            if removed or value not in [*choices[name], *none]:
                raise UserError(f"{argument}: unknown {name}, {nearest(value, [*choices[name], *none])}")
            arguments.chosen[name] = value
            if value != "null":  # no recipe is the default
                arguments.overrides.append(f"{name}={value}")
        else:
            if name in PATHS:
                value = _quoted(value)
            elif name == "logger" and "," in value and value[0] not in "'\"[":
                value = f"[{value}]"
            arguments.explicit.append(name)
            arguments.overrides.append(argument if removed else f"++{name}={value}")
    return arguments


def _quoted(path: str) -> str:
    """A path in Hydra's quotes, where only quotes and the backslashes before one have a meaning."""
    if path in ("null", "") or len(path) > 1 and path[0] == path[-1] and path[0] in "'\"":
        return path
    return "'" + re.sub(r"(\\*)('|$)", lambda m: 2 * m[1] + ("\\'" if m[2] else ""), path) + "'"


def compose(arguments: Arguments, config_name: str = "train") -> dict[str, Any]:
    """Compose the YAML files and overrides into plain containers (unchecked)."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
            composed = hydra.compose(config_name, [*arguments.overrides, *_recipe(arguments, config_name)])
        return OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(one_line(error).replace("++", "")) from error


def _recipe(arguments: Arguments, config_name: str) -> list[str]:
    """The override that picks the recipe of the pair gan-dataset, if there is one and the user names no other; UserError if he
    names another model's.

    An interpolated entry of the defaults list would do the same, but Hydra then forbids the recipe to choose from groups.
    """
    import yaml

    chosen: dict[str, str] = {}
    for entry in yaml.safe_load((CONFIGS / f"{config_name}.yaml").read_text())["defaults"]:
        chosen |= entry if isinstance(entry, dict) else {}
    chosen |= arguments.chosen
    if "recipe" in arguments.chosen:
        model = str(chosen["recipe"]).partition("-")[0]
        # its values would be refused one by one, as options that the user never typed; a resumed run says more itself
        if model in groups()["gan"] and model != chosen["gan"] and "resume" not in arguments.explicit:
            raise UserError(f"recipe={chosen['recipe']}: is for gan={model}, found gan={chosen['gan']}")
        return []
    pair = f"{chosen['gan']}-{chosen['dataset']}"
    return [f"recipe={pair}"] if pair in groups()["recipe"] else []


def one_line(error: BaseException) -> str:
    """The message of somebody else's exception, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def check_writable(option: str, path: Path, folder: bool = False) -> None:
    """UserError naming ``option`` unless a file ``path`` (or files in the folder ``path``) can be written. Before hours of work;
    whatever is made to find out is removed again."""
    home, made = path if folder else path.parent, []
    try:
        if path.is_dir() and not folder:
            raise UserError(f"{option}={path}: cannot write there (it is a folder)")
        made = [place for place in (home, *home.parents) if not place.exists()]
        if made:
            home.mkdir(parents=True, exist_ok=True)
        probe = home / (".writable" if folder else f".{path.name}.try")  # as long a name as that of the final write
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{option}={path}: cannot write there ({error.strerror})") from None
    finally:
        with contextlib.suppress(OSError):  # another process may have put something there
            for place in made:
                place.rmdir()


def guard(job: Callable[[], int | None]) -> int:
    """Run ``job``; a user's mistake becomes one line on stderr and status 2."""
    try:
        return job() or 0
    except UserError as error:
        print("error:", " ".join(str(error).splitlines()), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except (MemoryError, RuntimeError) as error:
        # torch's own kind is known by its name: torch is not loaded before there is something to do
        if type(error).__name__ not in ("MemoryError", "OutOfMemoryError") and "allocate memory" not in str(error):
            raise
        hint = "set micro_batch (train.py) or a lower batch_size"
        print(f"error: out of memory; {hint} ({one_line(error)[:200]})", file=sys.stderr)
        return 1


Job = Callable[[dict[str, Any], Arguments], "int | None"]


def main(job: Job, argv: Sequence[str] | None = None) -> int:
    """Entry point of train.py: compose and run ``job(values, arguments)``, once or for each combination of a sweep."""
    argv = list(sys.argv[1:] if argv is None else argv)

    def start() -> int | None:
        flags, words = _flags(argv)
        if "help" in flags:
            from training.help import help_text

            print(help_text(parse(words)))
            return 0
        if "cfg" in flags:
            from training.help import config_text

            for combination in sweep(words) if "multirun" in flags else [words]:
                print(config_text(parse(combination)), end="")
            return 0
        if "multirun" in flags:
            return _run_all(job, sweep(words))
        arguments = parse(words)
        return job(compose(arguments), arguments)

    return guard(start)


def _flags(argv: Sequence[str]) -> tuple[set[str], list[str]]:
    """(flags by their long names, the other words)."""
    flags, others = set(), []
    words = iter(argv)
    for word in words:
        if not word.startswith("-"):
            others.append(word)
            continue
        name, equals, value = word.partition("=")
        flag = FLAGS.get(name)
        if flag is None or equals and flag != "cfg":
            hint = nearest(name, FLAGS)
            raise UserError(f"{word}: unknown flag, {hint}; options are written option=value")
        if flag == "cfg":
            value = value if equals else next(words, "")
            if value != "job":
                raise UserError(f"{name}: prints the config of a run, written {name} job")
        flags.add(flag)
    return flags, others


def sweep(words: Sequence[str]) -> list[list[str]]:
    """Every combination of the values that Hydra's sweep syntax lists: ``seed=0,1``, ``seed=range(4)``, ``loss=choice(a,b)``."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, lists = OverridesParser.create(), []
    for word in words:
        name, equals, value = word.lstrip("+").partition("=")
        if not equals or word.startswith("~") or name == "logger":  # logger=wandb,tensorboard is a list
            lists.append([word])
        elif name in PATHS and _quoted(value) != value:
            lists.append([f"{name}={path}" for path in value.split(",")])
        else:
            try:
                override = parser.parse_override(word)
                values = override.sweep_string_iterator() if override.is_sweep_override() else [value]
                lists.append([f"{name}={one}" for one in values])
            except HydraException as error:
                raise UserError(f"{word}: {one_line(error)}") from error
    return [list(combination) for combination in itertools.product(*lists)]


def _run_all(job: Job, combinations: list[list[str]]) -> int:
    """The runs of a sweep, one after the other; what a signal stops stays stopped. The highest exit status of all."""
    runs = [parse(words) for words in combinations]
    composed = [compose(arguments) for arguments in runs]
    for option in ("run_dir", "resume"):
        shared = Counter(values[option] for values in composed if values.get(option) is not None).most_common(1)
        if shared and shared[0][1] > 1:
            hint = _telling_apart(combinations, composed) if option == "run_dir" else "sweep over resume=A,B,… and nothing else"
            raise UserError(f"{option}={shared[0][0]}: {shared[0][1]} runs cannot share it; {hint}")
    statuses = []
    for number, (words, arguments, values) in enumerate(zip(combinations, runs, composed, strict=True), start=1):
        print(f"run {number} of {len(runs)}: {' '.join(words)}", flush=True)
        statuses.append(guard(lambda values=values, arguments=arguments: job(values, arguments)))
        if statuses[-1] > 128:  # by a signal
            return statuses[-1]
    return max(statuses)


def _telling_apart(combinations: list[list[str]], composed: list[dict[str, Any]]) -> str:
    """What to type for run_dir, so that each run of a sweep has its own."""
    swept = [words[0].partition("=")[0] for words in zip(*combinations, strict=True) if len(set(words)) > 1]
    names = [f"{name}.name" if name in groups() else name for name in swept if name != "run_dir"]
    runs = []
    for values in composed:
        found = [functools.reduce(lambda at, key: at.get(key) if isinstance(at, dict) else None, name.split("."), values)
                 for name in names]  # fmt: skip
        runs.append(tuple(map(str, found)) if all(isinstance(value, str | int | float) for value in found) else None)
    if None in runs or len(set(runs)) < len(runs):  # recipes are not in the config, augment=ada,r3gan have one name
        return "leave it out"
    return f"leave it out, or write run_dir='x-{'-'.join(f'${{{name}}}' for name in names)}'"


def simple_main(
    job: Callable[[dict[str, Any]], int | None], usage: str | Callable[[], str], argv: Sequence[str] | None = None
) -> int:
    """Entry point of a script with a flat list of ``option=value``; ``--help`` prints ``usage`` (or what it returns)."""
    import yaml

    argv = list(sys.argv[1:] if argv is None else argv)
    if any(a in ("-h", "--help") for a in argv):
        print(usage if isinstance(usage, str) else usage())
        return 0

    def once() -> int | None:
        values: dict[str, Any] = {}
        for argument in argv:
            name, equals, value = argument.lstrip("+").partition("=")
            if not equals or not re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", name):
                raise UserError(f"{argument}: arguments have the form option=value, for example seed=1; --help lists them")
            if name in values:
                raise UserError(f"{argument}: {name} is given twice")
            if not value.strip():
                raise UserError(f"{argument}: empty; give a value, or leave {name} out")
            try:
                values[name] = value if name in TEXT else yaml.safe_load(value)
            except (yaml.YAMLError, ValueError):  # ValueError: 2024-13-01 as a date
                values[name] = value
        return job(values)

    return guard(once)
