"""The task ``nas``: a recurrent network that designs convolutional ones.

Source: Zoph and Le, "Neural Architecture Search with Reinforcement Learning", ICLR 2017, with the gradient of Williams,
"Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning", 1992. An LSTM of 32 units
chooses the number of layers and then, for each, kernel, filters and whether it pools; every choice, embedded, is the
input of the next. The child so designed is trained from nothing on some images (no parameters are shared), and its
accuracy on others is the reward R, float32 ``[M]`` for the M children of a step.

Loss of the controller: ``-(R - b) log p(child) - 0.02 H``, with b a moving average of rewards and H the entropy of the
choices; those of layers that the child does not have count for neither. Adam. In each step as many children are drawn
at random and trained for as long, with the same images: the baseline that a search has to beat.

Measured: ``reward`` and ``random_reward`` by epoch, and the best of either, of as many children; ``loss`` and
``accuracy`` of the controller's best child so far on the test images, and in ``docs/results.md`` of both best children
trained on all images. Plot: rewards by sample, of both. The best child, with the weights that it had when it was found,
is what is exported. ``--full`` trains 2,000 children and as many random ones: 11 minutes on two cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training.data import Mnist
from modelyard.training.plots import save_curves
from modelyard.training.run import TrainResult
from modelyard.training.tasks._nas_children import ChildPlan, ChildSpace
from modelyard.training.tasks.inputs import FashionImagesTask
from modelyard.training.user import InputRequest, average_loss, minimize

_UNITS = 32
#: Updates of the controller in an epoch.
_UPDATES = 10
#: Weight of the newest rewards in their moving average.
_NEWEST = 0.1
#: Rewards that are kept, to be drawn.
_KEPT = 10_000
#: Children behind each point of the smooth curves.
_SMOOTH = 20


class NasTask(FashionImagesTask):
    """Search for a small network for Fashion-MNIST; a batch is of children, not of images.

    Args:
        data: Images, or a folder of them in MNIST's idx format; None loads Fashion-MNIST when it is first needed.
        layers: The most that a child has.
        kernels: Sizes of kernels to choose among, odd.
        filters: Numbers of filters to choose among.
        images: Training images for the children, and half as many more to judge them on.
        child_steps: Steps that each child is trained for.
        child_batch_size: Images in each of them.
        child_rate: Step size of the children's Adam.
        learning_rate: Step size of the controller's.
        entropy_weight: Of the entropy of the choices; more keeps it looking around for longer.

    Raises:
        ConfigurationError: A number is out of its range.
    """

    name = "nas"
    recipe = {"batch_size": 4, "epochs": 10}
    full_recipe = {"epochs": 50}

    def __init__(
        self,
        *,
        data: Mnist | str | None = None,
        layers: int = 3,
        kernels: tuple[int, ...] = (1, 3, 5),
        filters: tuple[int, ...] = (2, 4, 8, 16),
        images: int = 1000,
        child_steps: int = 50,
        child_batch_size: int = 32,
        child_rate: float = 0.01,
        learning_rate: float = 0.01,
        entropy_weight: float = 0.02,
    ) -> None:
        super().__init__(data=data)
        for name, value in (("images", images), ("child_steps", child_steps), ("child_batch_size", child_batch_size)):
            if value < 1:
                raise ConfigurationError(f"{name} is {value}; expected a number >= 1.")
        # The data is not there yet, and has ten classes wherever it comes from.
        self._space = ChildSpace(layers=layers, kernels=tuple(kernels), filters=tuple(filters), classes=10)
        self._plan = ChildPlan(steps=child_steps, batch_size=child_batch_size, learning_rate=child_rate)
        self._images = images
        self._learning_rate = learning_rate
        self._entropy_weight = entropy_weight
        self._child: tuple[int, keras.Model] | None = None

    def build(self) -> None:
        """Creates the controller, its optimizer, and the memory of the search.

        Raises:
            ConfigurationError: There are too few images, or more than one replica.
        """
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if replicas > 1:
            raise ConfigurationError(f"The task 'nas' got {replicas} replicas; expected one, which sees every reward.")
        count = len(self.data.train_images)
        if self._images + self._images // 2 > count:
            raise ConfigurationError(
                f"images is {self._images}; expected at most {count * 2 // 3} of {count}, as half as many more are "
                "for judging."
            )
        self.controller, self.search = _Controller(self._space.options), _Search(self._space)
        self.optimizer = keras.optimizers.Adam(self._learning_rate)
        self.optimizer.build(self.controller.trainable_variables)
        self._child = None

    @property
    def exported(self) -> Mapping[str, Any]:
        """The best child so far; before the first one, the smallest of all, with weights of 0."""
        if not self.models:
            return super().exported
        # A signature that is being traced asks, too.
        with tf.init_scope():
            found_at = int(self.search.best_at)
            if self._child is None or self._child[0] != found_at:
                weights = [weight.numpy() for weight in self.search.best_weights]
                self._child = found_at, self._space.keras_model(self.search.best_choices.numpy(), weights)
        return {"child": self._child[1]}

    def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
        """Ten batches of seeds in each epoch, int64 ``[M, 2]``: the run's seed and the number of the child."""
        first = request.epoch * _UPDATES
        numbers = tf.data.Dataset.range(first + request.skip_batches, first + _UPDATES)
        size = request.batch_size * request.num_shards
        mine = tf.range(request.batch_size, dtype=tf.int64) + request.shard_index * request.batch_size

        def seeds(number: tf.Tensor) -> tf.Tensor:
            children = number * size + mine
            return tf.stack([tf.fill([request.batch_size], tf.constant(request.seed, tf.int64)), children], axis=1)

        return numbers.map(seeds)

    def train_step(self, batch: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """Draws children, trains each of them, and moves the controller towards the better ones.

        Returns:
            ``loss`` of the controller, ``reward``, ``random_reward``, the same of children drawn at random, and
            ``entropy`` of the choices, in nats, of each child, float32 ``[M]``.
        """
        controller, search = self.controller, self.search
        count, choices_each = tf.shape(batch)[0], len(self._space.options)
        draws = tf.random.stateless_uniform([2, count, choices_each], batch[0], minval=1e-7)
        options = tf.constant(self._space.options, tf.float32)
        at_random = tf.cast(draws[1] * options, tf.int32)
        with tf.GradientTape() as tape:
            choices, log_probability, entropy = controller(draws[0])
            with tape.stop_recording():
                both = tf.concat([choices, at_random], axis=0)
                rewards, weights = self._train_children(both, tf.concat([batch, batch], axis=0))
                reward, random_reward = rewards[:count], rewards[count:]
                search.remember(rewards, both, weights)
                baseline = search.expected(reward)
            matters = self._space.matters(choices)
            log_probability = tf.reduce_sum(matters * log_probability, axis=1)
            entropy = tf.reduce_sum(matters * entropy, axis=1)
            losses = -(reward - baseline) * log_probability - self._entropy_weight * entropy
            loss = average_loss(losses)
        minimize(loss, controller.trainable_variables, optimizer=self.optimizer, tape=tape)
        return {"loss": losses, "reward": reward, "random_reward": random_reward, "entropy": entropy}

    def eval_step(self, batch: tuple[tf.Tensor, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        """``loss`` and ``accuracy`` of the best child so far, of each example, float32 ``[B]``."""
        images, labels = batch
        search: _Search = self.search
        weights = [tf.convert_to_tensor(weight) for weight in search.best_weights]
        logits = self._space.forward(weights, tf.convert_to_tensor(search.best_choices), images)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return {"loss": losses, "accuracy": keras.metrics.sparse_categorical_accuracy(labels, logits)}

    def measurements(self) -> Mapping[str, float]:
        """Mean reward of all random children, of the controller's last quarter, and the best; none at the start."""
        rewards = self.rewards
        if not len(rewards):
            return {}
        return {
            "best_reward": float(rewards[:, 0].max()),
            "last_quarter_reward": float(rewards[-(-len(rewards) * 3 // 4) :, 0].mean()),
            "mean_random_reward": float(rewards[:, 1].mean()),
            "best_random_reward": float(rewards[:, 1].max()),
        }

    def draw(self, result: TrainResult, folder: Path) -> list[Path]:
        """Draws the rewards, sample by sample and smoothed."""
        both = {"controller": self.rewards[:, 0], "random": self.rewards[:, 1]}
        window = min(_SMOOTH, len(self.rewards))
        smooth = {name: np.convolve(values, np.full(window, 1 / window), "valid") for name, values in both.items()}
        panels = {
            "validation accuracy": {name: values.tolist() for name, values in both.items()},
            f"mean of {window} from there": {name: values.tolist() for name, values in smooth.items()},
        }
        path = folder / "rewards.png"
        save_curves(panels, path, title=f"Best child: {self.best_child}", x_label="sample")
        return [path]

    @property
    def rewards(self) -> npt.NDArray[np.float32]:
        """Of every child so far, up to 10,000: the controller's, and the random one's beside it, float32 ``[N, 2]``."""
        search: _Search = self.search
        kept: npt.NDArray[np.float32] = search.rewards.numpy()[: int(search.count)]
        return kept

    @property
    def best_child(self) -> str:
        """The layers of the best child, such as ``5x5 16, pool; 3x3 8``."""
        sizes = self._space.layer_sizes(self.search.best_choices.numpy())
        return "; ".join(f"{size}x{size} {filters}{', pool' if pooled else ''}" for size, filters, pooled in sizes)

    def best_network(self, *, at_random: bool = False) -> keras.Model:
        """The controller's best child so far, or the best random one, with new weights: to be trained in full."""
        search: _Search = self.search
        choices = (search.best_random_choices if at_random else search.best_choices).numpy()
        weights = [np.zeros(shape, np.float32) for shape in self._space.shapes]
        return keras.models.clone_model(self._space.keras_model(choices, weights))

    def data_description(self) -> str:
        """Where the images came from, and what they are for."""
        return f"{self.data.source}; children see the first {self._images}, the next {self._images // 2} judge them"

    def _train_children(self, choices: tf.Tensor, seeds: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Rewards ``[M]`` and weights ``[M, ...]`` of children that are trained alone."""
        images, labels = self.data.train_images[..., np.newaxis], self.data.train_labels.astype(np.int64)
        seen, judging = slice(0, self._images), slice(self._images, self._images + self._images // 2)

        def train_child(child: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            weights = self._space.train(
                child[0], child[1], images=tf.constant(images[seen]), labels=tf.constant(labels[seen]), plan=self._plan
            )
            judged = tf.constant(images[judging]), tf.constant(labels[judging])
            return self._space.accuracy(weights, child[0], *judged), weights

        kinds = (tf.float32, [tf.float32] * len(self._space.shapes))
        trained: tuple[tf.Tensor, list[tf.Tensor]] = tf.map_fn(
            train_child, (choices, seeds), fn_output_signature=kinds, parallel_iterations=2
        )
        return trained


class _Controller(keras.layers.Layer):
    """Makes one choice after the other; at the start each option is as likely as any other."""

    def __init__(self, options: tuple[int, ...]) -> None:
        super().__init__(name="controller", dtype="float32")
        self.options = options
        self.cell = keras.layers.LSTMCell(_UNITS)
        self.embeddings = [keras.layers.Embedding(count, _UNITS) for count in options[:-1]]
        self.heads = [keras.layers.Dense(count, kernel_initializer="zeros") for count in options]
        self.cell.build((None, _UNITS))
        for layer in (*self.embeddings, *self.heads):
            layer.build((None, _UNITS) if layer in self.heads else (None,))
        self.built = True

    def call(self, draws: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Samples children by uniform draws, float32 ``[M, choices]``.

        Returns the choices, int32, and of each its log probability and its entropy in nats, all ``[M, choices]``.
        """
        state = [tf.zeros([tf.shape(draws)[0], _UNITS])] * 2
        x, made = state[0], []
        for number, head in enumerate(self.heads):
            output, state = self.cell(x, state)
            log_all = tf.nn.log_softmax(head(output))
            # The first option whose cumulated probability exceeds the draw.
            passed = tf.cumsum(tf.exp(log_all), axis=1) <= draws[:, number : number + 1]
            choice = tf.minimum(tf.reduce_sum(tf.cast(passed, tf.int32), axis=1), self.options[number] - 1)
            entropy = -tf.reduce_sum(tf.exp(log_all) * log_all, axis=1)
            made.append((choice, tf.gather(log_all, choice, batch_dims=1), entropy))
            if number < len(self.embeddings):
                x = self.embeddings[number](choice)
        choices, log_probabilities, entropies = (tf.stack(parts, axis=1) for parts in zip(*made, strict=True))
        return choices, log_probabilities, entropies


class _Search(tf.Module):
    """What the search remembers."""

    def __init__(self, space: ChildSpace) -> None:
        super().__init__(name="search")
        self.count = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.baseline = tf.Variable(0.0, trainable=False)
        self.rewards = tf.Variable(tf.zeros([_KEPT, 2]), trainable=False)
        self.best_reward = tf.Variable(-1.0, trainable=False)
        self.best_at = tf.Variable(-1, dtype=tf.int64, trainable=False)
        self.best_choices = tf.Variable(tf.zeros([len(space.options)], tf.int32), trainable=False)
        self.best_random_reward = tf.Variable(-1.0, trainable=False)
        self.best_random_choices = tf.Variable(tf.zeros([len(space.options)], tf.int32), trainable=False)
        self.best_weights = [tf.Variable(tf.zeros(shape), trainable=False) for shape in space.shapes]

    def expected(self, reward: tf.Tensor) -> tf.Tensor:
        """The moving average of rewards before these; then it takes them in."""
        mean = tf.reduce_mean(reward)
        before = tf.where(self.count > tf.size(reward, tf.int64), self.baseline, mean)
        self.baseline.assign(before + _NEWEST * (mean - before))
        return before

    def remember(self, rewards: tf.Tensor, choices: tf.Tensor, weights: Any) -> None:
        """Notes rewards ``[2 M]``, of the controller's children and then of random ones, and the best of either."""
        reward, random_reward = tf.split(rewards, 2)
        rows = self.count + tf.range(tf.size(reward, tf.int64), dtype=tf.int64)
        room = rows < _KEPT
        pairs = tf.boolean_mask(tf.stack([reward, random_reward], axis=1), room)
        self.rewards.scatter_nd_update(tf.boolean_mask(rows, room)[:, tf.newaxis], pairs)
        mine, others = tf.split(choices, 2)
        best = tf.argmax(reward)
        found = [rows[best], mine[best], *(weight[best] for weight in weights)]
        _keep(reward[best], self.best_reward, found, [self.best_at, self.best_choices, *self.best_weights])
        best = tf.argmax(random_reward)
        _keep(random_reward[best], self.best_random_reward, [others[best]], [self.best_random_choices])
        self.count.assign_add(tf.size(reward, tf.int64))


def _keep(reward: tf.Tensor, best: tf.Variable, found: Sequence[tf.Tensor], kept: Sequence[tf.Variable]) -> None:
    """Keeps what was found with a reward where that is better than the best before."""
    better = reward > best
    for variable, value in zip([best, *kept], [reward, *found], strict=True):
        variable.assign(tf.where(better, value, variable))
