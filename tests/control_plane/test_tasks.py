from __future__ import annotations

import pickle

from rollart.control_plane.tasks import REMEMBERED, TaskQueue


def test_a_task_comes_back_once_ahead_of_new_ones() -> None:
    queue = TaskQueue()
    assert [queue.take() for _ in range(3)] == [0, 1, 2]

    queue.give_back(1)
    assert [queue.take(), queue.take()] == [1, 3]
    queue.give_back(1)
    assert queue.take() == 4


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
