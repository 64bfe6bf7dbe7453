"""Gymnasium-style text environments, as a user would bring them."""

import gymnasium


class Corridor(gymnasium.Env):
    """Walk right three times."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=3):
        self.length = length
        self.closed = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        self.start = int(self.np_random.integers(1000))
        return f"start {self.start}", {}

    def step(self, action):
        assert action in (0, 1), action
        self.place += 1 if action == 1 else -1
        done = self.place == self.length
        return f"place {self.place}", float(done), done, False, {"success": done, "debug": object()}

    def close(self):
        self.closed = True


class Numbers:
    """No seed, observations that are no text, actions that are text."""

    action_space = gymnasium.spaces.Text(5)

    def reset(self):
        return [1, 2], {}

    def step(self, action):
        return len(action), 1, True, False, {}


def judge(response, expected):
    """A verifier with partial credit."""
    return 0.5 if expected in response else 0.0
