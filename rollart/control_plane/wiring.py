"""The control plane of one run, put together: cores, scheduler, LLMProxy, protocol, loops, evaluation.

Pure construction; nothing starts here. Called by the Job once the workers have started.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from rollart.config.config import Config
from rollart.control_plane.evaluation import Evaluation
from rollart.control_plane.groups import GroupBook
from rollart.control_plane.host_client import HostClient
from rollart.control_plane.host_supervisor import HostSupervisor
from rollart.control_plane.job_state import JobState, fixed_settings
from rollart.control_plane.ledger import Ledger
from rollart.control_plane.llm_proxy import EngineClient, LLMProxy
from rollart.control_plane.mix import SlotSchedule
from rollart.control_plane.protocol import TrainingProtocol
from rollart.control_plane.rollout_scheduler import Cores, RolloutScheduler, RolloutSettings
from rollart.control_plane.sample_buffer import SampleBuffer
from rollart.control_plane.supervision import Loop
from rollart.control_plane.tasks import TaskQueue
from rollart.control_plane.training_loop import LoopHooks, TrainingLoop
from rollart.control_plane.waits import Signal, Waits
from rollart.data_plane.generation.engine import EngineInfo
from rollart.events import Alarm, EventSink
from rollart.runtime.runtime import WorkerHandle


class JobWorkers(msgspec.Struct, frozen=True):
    """The placed workers of a run.

    Attributes:
        restart_host: Places a new process for the host with this index, whose old one is gone.
    """

    trainer: WorkerHandle
    engines: Sequence[WorkerHandle]
    hosts: Sequence[WorkerHandle]
    restart_host: Callable[[int], Awaitable[WorkerHandle]]


class Wiring(msgspec.Struct, frozen=True):
    """Every part of the control plane of one run."""

    cores: Cores
    hosts: list[HostClient]
    supervisors: list[HostSupervisor]
    scheduler: RolloutScheduler
    proxy: LLMProxy
    protocol: TrainingProtocol
    loop: TrainingLoop
    evaluation: Evaluation

    def loops(self) -> list[Loop]:
        """The background loops that must run while the job does."""
        loops: list[Loop] = [*self.proxy.loops()]
        for host, supervisor in zip(self.hosts, self.supervisors, strict=True):
            loops.append((host.name, supervisor.run))
        loops.append(("publisher", self.loop.publish))
        loops.append(("rollout side", self.loop.update))
        return loops

    def describe(self) -> list[Callable[[], str]]:
        """The state of every part, one line each, for the watchdog."""
        return [self.protocol.describe, self.scheduler.describe, self.proxy.describe]

    def state(self, config: Config, train_seconds: float) -> JobState:
        """What a checkpoint of the present version needs of the control plane."""
        cores = self.cores
        leased = () if cores.buffer.lease is None else cores.buffer.lease.groups
        alive = sorted((group.index, group.domain, group.task) for group in (*leased, *cores.buffer, *cores.book))
        tasks = {
            name: queue.state([task for _, domain, task in alive if domain == name])
            for name, queue in cores.tasks.items()
        }
        return JobState(
            version=self.protocol.trained,
            next_group=cores.book.next_index,
            tasks=tasks,
            slots=cores.slots.state(Counter(group.domain for group in leased)),
            train_seconds=train_seconds,
            evaluations=self.evaluation.passes,
            made_with=fixed_settings(config),
        )


def wire(
    config: Config,
    workers: JobWorkers,
    infos: Sequence[EngineInfo],
    affinity: dict[str, str],
    start: JobState,
    ledger: Ledger,
    sink: EventSink,
    waits: Waits,
    changed: Signal,
    hooks: LoopHooks,
) -> Wiring:
    """Put the control plane together around started workers; ``start`` says where the run begins."""
    cores = _cores(config, start, ledger)
    for domain in cores.slots.suspended:
        sink.emit(Alarm(f"domain {domain}", "is suspended, as it was when the checkpoint was made"))
    hosts = [HostClient(handle) for handle in workers.hosts]
    scheduler = RolloutScheduler(_settings(config), cores, hosts, sink, changed)
    restarts = config.rollout.host_restarts
    supervisors = [
        HostSupervisor(host, scheduler, partial(workers.restart_host, index), restarts, sink)
        for index, host in enumerate(hosts)
    ]
    engines = [EngineClient(handle, info) for handle, info in zip(workers.engines, infos, strict=True)]
    proxy = LLMProxy(
        engines,
        affinity,
        sink,
        waits,
        scheduler.first_token,
        config.engine.answer_timeout,
        config.log.turns,
        config.placement.prefill,
    )
    scheduler.connect(proxy)
    switches = config.switches
    protocol = TrainingProtocol(config.run.iterations, switches.update, start.version, switches.transfer)
    loop = TrainingLoop(protocol, workers.trainer, proxy, scheduler, sink, changed, hooks)
    evaluation = Evaluation(
        config.run.seed,
        tuple(config.domains),
        config.evaluation.instances,
        config.evaluation.greedy,
        config.rollout.retries,
        scheduler,
        sink,
        changed,
        hooks.stop_requested,
        start.evaluations,
    )
    return Wiring(cores, hosts, supervisors, scheduler, proxy, protocol, loop, evaluation)


def _cores(config: Config, start: JobState, ledger: Ledger) -> Cores:
    rollout = config.rollout
    masked = frozenset(name for name, domain in config.domains.items() if domain.truncated == "mask")
    stale = config.switches.stale
    book = GroupBook(config.run.seed, rollout.group_size, rollout.redundant_members, rollout.retries, masked, stale)
    book.next_index = start.next_group
    slots = SlotSchedule(config.shares, rollout.groups_per_batch, rollout.mix_tolerance, start.slots)
    capacity = (config.alpha + 1) * rollout.groups_per_batch + rollout.redundant_groups
    buffer = SampleBuffer(config.alpha, capacity, config.training.checkpoint.every > 0, start.version, stale)
    tasks = {name: TaskQueue(start.tasks.get(name)) for name in config.domains}
    return Cores(book, buffer, slots, tasks, ledger)


def _settings(config: Config) -> RolloutSettings:
    rollout, switches = config.rollout, config.switches
    return RolloutSettings(
        alpha=switches.alpha,
        iterations=config.run.iterations,
        groups_per_batch=rollout.groups_per_batch,
        redundant_groups=rollout.redundant_groups,
        max_environments=rollout.max_environments,
        retry_delay=rollout.retry_delay,
        starvation_limit=rollout.starvation_limit,
        filter_zero_variance=rollout.filter_zero_variance,
        stale=switches.stale,
        interaction=switches.interaction,
        scoring=switches.scoring,
    )
