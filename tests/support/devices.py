"""Several devices on one processor, for replicas and pipeline stages."""

from __future__ import annotations

LOGICAL_CPUS = tuple(f"/job:localhost/replica:0/task:0/device:CPU:{number}" for number in range(3))


def set_logical_cpus() -> None:
    """Makes them. TensorFlow takes their number only before its first op, which other rooms' modules run at import."""
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * len(LOGICAL_CPUS)
    )


def separate_replicas() -> None:
    """Keeps the next ``MirroredStrategy`` of this process out of the way of those before it, as TensorFlow's tests do.

    Collective ops of two strategies have the same numbers otherwise, and fail where their shapes differ.
    """
    import tensorflow as tf

    tf.distribute.MirroredStrategy._collective_key_base += 100_000
