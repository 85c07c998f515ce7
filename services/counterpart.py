"""What the simulator has to be told to see a run with modelled compute and the stub harness through in virtual time."""

from gyre.config import Config
from gyre.core.plan import execution_name
from gyre.core.simulation.outcome import Outcome
from gyre.core.simulation.setting import Setting, Timings
from gyre.core.simulation.workload import Job
from gyre.core.simulation.world import Watch, simulate
from gyre.errors import ConfigError, Problem
from gyre.harnesses.reference.options import UsageError
from gyre.harnesses.stub.options import Options, parse
from gyre.harnesses.stub.workload import tokens_of
from gyre.models.load import MODELLED

STUB = "{stub}"


class StubWork:
    """Implements `gyre.core.simulation.workload.Workload`: the very executions that the stub harness draws."""

    def __init__(self, config: Config, options: Options) -> None:
        """`options` are the stub's."""
        schedule = config.schedule
        self._options, self._token_seconds = options, config.modelled.token_seconds
        share = config.modelled.training_seconds / (schedule.groups * schedule.executions)
        self._micro_steps = (share,) * schedule.executions

    def jobs(self, index: int, task: str, executions: int) -> tuple[Job, ...]:
        """See the port; the stub asks for nothing about its task."""
        names = (execution_name(index, place) for place in range(executions))
        return tuple(Job(tokens_of(self._options, name) * self._token_seconds) for name in names)

    def micro_steps(self, index: int) -> tuple[float, ...]:
        """See the port: one for each execution, all alike."""
        return self._micro_steps


def simulated(config: Config, watch: Watch) -> Outcome:
    """See a modelled configuration through in virtual time; `watch` is told of every event.

    Raises:
        ConfigError: its compute is not modelled, or its harness is not the stub.
        SimulationStuck: it can never end.
    """
    work = StubWork(config, stub_options(config))
    return simulate(setting_of(config), work, watch)


def setting_of(config: Config) -> Setting:
    """The modelled deployment, its control plane taken to cost nothing."""
    times = config.modelled
    return Setting(
        plan=config.plan(("stub",)),
        capacity=config.cells.concurrency,
        relief=times.idle_gain,
        timings=Timings(
            to_train=times.to_train_seconds,
            to_rollout=times.to_rollout_seconds,
            update=times.update_seconds,
            publication=times.publication_seconds,
        ),
    )


def stub_options(config: Config) -> Options:
    """What the configured harness command tells the stub. Raises `ConfigError`."""
    command = config.harness.command
    if config.model.path != MODELLED:
        rule = f'compute whose durations are known is needed; set model.path = "{MODELLED}" and [modelled]'
        raise ConfigError("", (Problem("model.path", config.model.path, rule),))
    if STUB not in command:
        rule = f"what an execution asks for must be known; use {STUB} with its options, as examples/compare.toml does"
        raise ConfigError("", (Problem("harness.command", " ".join(command), rule),))
    try:
        return parse(command[command.index(STUB) + 1 :])
    except UsageError as error:
        raise ConfigError("", (Problem("harness.command", " ".join(command), str(error)),)) from error
