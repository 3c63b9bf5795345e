"""MNIST on one process with TensorFlow 2: the program the other starts from."""

import argparse
import time

import keras
import numpy as np
import tensorflow as tf

from grace_dl.data import load_images

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch", type=int, default=256, help="images in a step")
args = parser.parse_args()

keras.utils.set_random_seed(0)
images = load_images("mnist", report=print)
train_x = images.train_x.flatten(1).numpy().astype("float32") / 255
test_x = images.test_x.flatten(1).numpy().astype("float32") / 255
train_y, test_y = images.train_y.numpy(), images.test_y.numpy()

model = keras.Sequential(
    [
        keras.Input((784,)),
        keras.layers.Dense(512, "relu"),
        keras.layers.Dense(256, "relu"),
        keras.layers.Dense(10),
    ]
)
optimizer = keras.optimizers.Adam(0.002)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


started = time.perf_counter()
steps = 0
for epoch in range(args.epochs):
    order = np.random.default_rng(epoch).permutation(len(train_x))
    for start in range(0, len(order), args.batch):
        batch = order[start : start + args.batch]
        loss = step(train_x[batch], train_y[batch])
        steps += 1
    print(f"epoch {epoch + 1}: loss {float(loss):.3f}")
seconds = time.perf_counter() - started

accuracy = float(np.mean(np.argmax(model(test_x), 1) == test_y))
print(f"{steps} steps of {1000 * seconds / steps:.1f} ms")
print(f"test accuracy {100 * accuracy:.2f} %")
