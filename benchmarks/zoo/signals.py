"""Signal processing."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from benchmarks.zoo._kind import floats, kind, module, spec, weights

layers = keras.layers


@kind(floats(16))
def rfft() -> Any:
    """Magnitudes of a real Fourier transform."""
    return module(lambda wave: tf.abs(tf.signal.rfft(wave)), spec(None, 16))


@kind(floats(16))
def inverse_fft() -> Any:
    """Filter in the frequency domain and back."""
    w = weights(9)
    return module(lambda wave: tf.signal.irfft(tf.signal.rfft(wave) * tf.cast(w, tf.complex64)), spec(None, 16), w=w)


@kind(floats(64))
def spectrogram() -> Any:
    """Short-time Fourier transform, magnitudes."""
    return module(lambda wave: tf.abs(tf.signal.stft(wave, 16, 8)), spec(None, 64))


@kind(floats(64))
def spectrogram_classifier() -> Any:
    """Log spectrogram before a convolution: a keyword spotter."""
    w = weights(3, 3, 1, 4)

    def serve(wave: Any) -> Any:
        power = tf.math.log(tf.abs(tf.signal.stft(wave, 16, 8)) + 1e-3)
        return tf.reduce_mean(tf.nn.conv2d(power[..., None], w, 1, "SAME"), [1, 2])

    return module(serve, spec(None, 64), w=w)


@kind(floats(64))
def mfcc() -> Any:
    """Mel-frequency cepstral coefficients."""

    def serve(wave: Any) -> Any:
        mel = tf.signal.linear_to_mel_weight_matrix(6, 9, 8000, 100.0, 3500.0)
        power = tf.matmul(tf.abs(tf.signal.stft(wave, 16, 8)), mel)
        return tf.signal.mfccs_from_log_mel_spectrograms(tf.math.log(power + 1e-3))

    return module(serve, spec(None, 64))


@kind(floats(64), tolerance=1e-3)
def mel_layer() -> Any:
    """Keras' MelSpectrogram layer."""
    wave = keras.Input((64,), name="wave")
    return keras.Model(wave, layers.MelSpectrogram(16, 8, num_mel_bins=6, sampling_rate=8000, max_freq=3500.0)(wave))


@kind(floats(64, 1))
def stft_layer() -> Any:
    """Keras' STFTSpectrogram layer."""
    wave = keras.Input((64, 1), name="wave")
    h = layers.STFTSpectrogram(mode="log", frame_length=16, frame_step=8, fft_length=16)(wave)
    return keras.Model(wave, layers.Dense(2)(h))


@kind(floats(3))
def complex_numbers() -> Any:
    """Complex arithmetic inside."""

    def serve(x: Any) -> Any:
        z = tf.complex(x, 2.0 * x + 1.0)
        return {"real": tf.math.real(z * z), "angle": tf.math.angle(z), "size": tf.abs(tf.exp(z))}

    return module(serve, spec(None, 3))


@kind(floats(8, 8))
def fft2d() -> Any:
    """Two-dimensional Fourier transform, an FNet mixer."""
    return module(lambda x: tf.math.real(tf.signal.fft2d(tf.cast(x, tf.complex64))), spec(None, 8, 8))


@kind(floats(32))
def framed() -> Any:
    """Overlapping frames, windowed energy, overlap-and-add."""

    def serve(wave: Any) -> Any:
        frames = tf.signal.frame(wave, 8, 4) * tf.signal.hann_window(8)
        return {"energy": tf.reduce_sum(frames**2, -1), "again": tf.signal.overlap_and_add(frames, 4)}

    return module(serve, spec(None, 32))


@kind(floats(32))
def raw_audio() -> Any:
    """Gated dilated convolutions on raw audio (WaveNet)."""
    wave = keras.Input((32,), name="wave")
    h = layers.Conv1D(4, 1)(layers.Reshape((32, 1))(wave))
    for rate in (1, 2, 4):
        settings = {"dilation_rate": rate, "padding": "causal"}
        gate = layers.Conv1D(4, 2, activation="sigmoid", **settings)(h)
        h = h + layers.Conv1D(4, 1)(gate * layers.Conv1D(4, 2, activation="tanh", **settings)(h))
    return keras.Model(wave, layers.Dense(8, activation="softmax")(h[:, -1]))
