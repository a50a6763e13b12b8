"""JAX takes NumPy's batches, and makes bfloat16 of them."""

import importlib
from pathlib import Path

import numpy as np
from small import load

import gpuload


def test_a_training_step_of_jax(packed: Path) -> None:
    jax = importlib.import_module("jax")
    jnp = jax.numpy
    loader = load(packed, output="numpy", shuffle=False, augment=gpuload.Augment(8))

    @jax.jit
    def step(weights, images, labels):  # type: ignore[no-untyped-def]
        def loss_of(weights):  # type: ignore[no-untyped-def]
            logits = images.reshape(len(images), -1) @ weights
            return -jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels].mean()

        loss, gradient = jax.value_and_grad(loss_of)(weights)
        return loss, weights - 0.01 * gradient

    weights, losses = jnp.zeros((192, 3), jnp.bfloat16), []
    for images, labels in loader:
        placed = jax.device_put((images, labels))
        assert np.array_equal(placed[0], images)
        pixels = jnp.transpose(placed[0], (0, 2, 3, 1)).astype(jnp.bfloat16)  # NHWC, as flax has it
        loss, weights = step(weights, pixels, placed[1])
        losses.append(float(loss))
    assert len(losses) == 13 and weights.dtype == jnp.bfloat16 and np.isfinite(losses).all()
