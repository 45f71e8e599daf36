"""Random programs of TensorFlow and Keras, exported and computed by every runtime."""
