from __future__ import annotations

import pickle

import msgspec

from rollart.control_plane.tasks import REMEMBERED, TaskQueue, TaskState


def test_a_task_comes_back_once_ahead_of_new_ones() -> None:
    queue = TaskQueue()
    assert [queue.take() for _ in range(3)] == [0, 1, 2]

    queue.give_back(1)
    assert [queue.take(), queue.take()] == [1, 3]
    queue.give_back(1)
    assert queue.take() == 4


def test_a_resumed_queue_goes_on_with_what_was_unfinished_and_returned() -> None:
    queue = TaskQueue()
    for _ in range(5):
        queue.take()
    queue.give_back(0)
    queue.give_back(3)

    resumed = TaskQueue(msgspec.json.decode(msgspec.json.encode(queue.state([2, 4])), type=TaskState))

    assert [resumed.take() for _ in range(5)] == [2, 4, 3, 0, 5]
    resumed.give_back(3)
    resumed.give_back(4)
    assert resumed.take() == 4, "task 3 has come back before"
    assert resumed.take() == 6


def test_a_queue_whose_tasks_all_come_back_stays_small() -> None:
    queue = TaskQueue()
    sizes = []
    for number in range(3 * REMEMBERED):
        task = queue.take()
        queue.give_back(task)
        assert queue.take() == task
        if number % REMEMBERED == REMEMBERED - 1:
            sizes.append(len(pickle.dumps(queue)))

    assert sizes[2] < 1.2 * sizes[0]
