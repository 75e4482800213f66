"""AdamW over named arrays, for examples that train the product's layers from NumPy."""
# SPDX-License-Identifier: Apache-2.0

import numpy as np


class Adam:
    """Changes the arrays in place. Matrices decay by `decay` times the rate at each step."""

    def __init__(self, decay=0.05, betas=(0.9, 0.99)):
        self.decay, self.betas, self.moments, self.steps = decay, betas, {}, 0

    def step(self, parameters, gradients, rate):
        self.steps += 1
        first, second = self.betas
        for name, value in parameters.items():
            m, v = self.moments.setdefault(name, [np.zeros_like(value), np.zeros_like(value)])
            m += (1 - first) * (gradients[name] - m)
            v += (1 - second) * (gradients[name] ** 2 - v)
            value *= 1 - self.decay * rate if value.ndim == 2 else 1
            value -= rate * (m / (1 - first**self.steps)) / (np.sqrt(v / (1 - second**self.steps)) + 1e-8)
