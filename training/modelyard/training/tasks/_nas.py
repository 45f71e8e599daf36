"""The task ``nas``: a recurrent network that designs convolutional ones.

Source: Zoph, Vasudevan, Shlens and Le, "Learning Transferable Architectures for Scalable Image Recognition", CVPR 2018:
a child is a stack of two kinds of cells, normal ones and reductions, which halve the image; of each cell the search
chooses, for every block, two inputs among the cell's own two and the blocks before, and an operation for each (a skip
connection, pooling, separable convolutions); and the number of filters. Trained as in Zoph and Le, "Neural Architecture
Search with Reinforcement Learning", ICLR 2017, by the gradient of Williams, "Simple Statistical Gradient-Following
Algorithms for Connectionist Reinforcement Learning", 1992: an LSTM of 32 units makes one choice after the other, each
one embedded as the input of the next. The child is trained from nothing on some images (no parameters are shared), and
its accuracy on others is the reward R, float32 ``[M]`` for the M children of a step.

Loss of the controller: ``-(R - b) log p(child) - 0.02 H``, with b a moving average of rewards and H the entropy of the
choices. Adam. In each step as many children are drawn at random and trained for as long, with the same images: the
baseline that a search has to beat. Unlike the source, whose operations on a reduction's inputs have a stride of 2,
means of 2 x 2 pixels halve these inputs; a block is the mean of its halves, which stands for batch normalization; the
filters stay the same after a reduction.

With ``--strategy ps`` each worker trains the children of a step of its own, side by side with the others, and sends the
controller's gradient to the parameter servers when it is through, without waiting, as in the source of 2017.

Measured: ``reward`` and ``random_reward`` by epoch, and the best of either, of as many children; ``loss`` and
``accuracy`` of the controller's best child so far on the test images, and in ``docs/results.md`` of both best children
trained on all images. Plot: rewards by sample, of both. The best child, with the weights that it was judged with, is
what is exported.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from modelyard.training.tasks.inputs import FashionImagesTask
from modelyard.training.tasks.search import CellSpace, ChildPlan, Controller, SearchLog
from modelyard.training.user import InputRequest, average_loss, minimize

#: Updates of the controller in an epoch.
_UPDATES = 10
#: Children behind each point of the smooth curves.
_SMOOTH = 20


class NasTask(FashionImagesTask):
    """Search for a small network for Fashion-MNIST; a batch is of children, not of images.

    Args:
        data: Images, or a folder of them in MNIST's idx format; None loads Fashion-MNIST when it is first needed.
        blocks: Of each cell.
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
        blocks: int = 2,
        filters: tuple[int, ...] = (8, 16, 32, 64),
        images: int = 1000,
        child_steps: int = 50,
        child_batch_size: int = 32,
        child_rate: float = 0.02,
        learning_rate: float = 0.01,
        entropy_weight: float = 0.02,
    ) -> None:
        super().__init__(data=data)
        for name, value in (("images", images), ("child_steps", child_steps), ("child_batch_size", child_batch_size)):
            if value < 1:
                raise ConfigurationError(f"{name} is {value}; expected a number >= 1.")
        # The data is not there yet, and has ten classes wherever it comes from.
        self._space = CellSpace(blocks=blocks, filters=tuple(filters), classes=10)
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
        self.controller = Controller(self._space.options)
        self.search = SearchLog(len(self._space.options), self._space.shapes)
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
            self._train_best()
            found_at = int(self.search.weights_of)
            if self._child is None or self._child[0] != found_at:
                weights = [weight.numpy() for weight in self.search.weights]
                self._child = found_at, self._space.keras_model(self._best_choices(), weights)
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
                rewards = self._rewards(both, tf.concat([batch, batch], axis=0))
                reward, random_reward = tf.split(rewards, 2)
                search.remember(batch, rewards, both)
                baseline = search.expected(reward)
            log_probability, entropy = tf.reduce_sum(log_probability, axis=1), tf.reduce_sum(entropy, axis=1)
            losses = -(reward - baseline) * log_probability - self._entropy_weight * entropy
            loss = average_loss(losses)
        minimize(loss, controller.trainable_variables, optimizer=self.optimizer, tape=tape)
        return {"loss": losses, "reward": reward, "random_reward": random_reward, "entropy": entropy}

    def eval_step(self, batch: tuple[tf.Tensor, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        """``loss`` and ``accuracy`` of the best child so far, of each example, float32 ``[B]``."""
        images, labels = batch
        self._train_best()
        search: SearchLog = self.search
        weights = [tf.convert_to_tensor(weight) for weight in search.weights]
        logits = self._space.forward(weights, search.choices[search.best(), 0], images)
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
        every: npt.NDArray[np.float32] = self.search.rewards.numpy()
        return every[every[:, 0] >= 0]

    @property
    def best_child(self) -> str:
        """The best child, such as ``16 filters; normal: skip of 0 + separable 3x3 of 1; reduction: ...``.

        Inputs are numbered: 0 is the cell before the last one, 1 the last one, 2 the first block of the cell itself.
        """
        return self._space.describe(self._best_choices())

    def best_network(self, *, at_random: bool = False) -> keras.Model:
        """The controller's best child so far, or the best random one, with new weights: to be trained in full."""
        return self._space.keras_model(self._best_choices(at_random=at_random))

    def data_description(self) -> str:
        """Where the images came from, and what they are for."""
        return f"{self.data.source}; children see the first {self._images}, the next {self._images // 2} judge them"

    def _best_choices(self, *, at_random: bool = False) -> npt.NDArray[np.int32]:
        search: SearchLog = self.search
        choices: npt.NDArray[np.int32] = search.choices.numpy()[int(search.best(at_random=at_random)), int(at_random)]
        return choices

    def _rewards(self, choices: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        """Accuracies ``[M]`` of children that are trained alone, on images that they did not see."""
        judging = self._images_of(slice(self._images, self._images + self._images // 2))

        def reward(child: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            return self._space.accuracy(self._weights(*child), child[0], *judging)

        found: tf.Tensor = tf.map_fn(
            reward, (choices, seeds), fn_output_signature=tf.TensorSpec([], tf.float32), parallel_iterations=2
        )
        return found

    @tf.function
    def _weights(self, choices: tf.Tensor, seed: tf.Tensor) -> list[tf.Tensor]:
        images, labels = self._images_of(slice(0, self._images))
        return self._space.train(choices, seed, images=images, labels=labels, plan=self._plan)

    @tf.function
    def _train_best(self) -> None:
        """Trains the best child once more, if it is a new one: its choices and its seed make the same weights."""
        search: SearchLog = self.search
        best = search.best()

        def train() -> bool:
            trained = self._weights(search.choices[best, 0], tf.stack([search.seed, best]))
            for variable, weight in zip(search.weights, trained, strict=True):
                variable.assign(weight)
            search.weights_of.assign(best)
            return True

        tf.cond((search.rewards[best, 0] >= 0) & (search.weights_of != best), train, lambda: False)

    def _images_of(self, rows: slice) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = self.data.train_images[rows], self.data.train_labels[rows]
        return tf.constant(images[..., np.newaxis]), tf.constant(labels.astype(np.int64))
