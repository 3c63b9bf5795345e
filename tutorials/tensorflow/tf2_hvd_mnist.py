"""MNIST with TensorFlow 2 and Horovod: every worker has the whole model and a part of the data.

python tf2_hvd_mnist.py
horovodrun -np 2 --gloo python tf2_hvd_mnist.py
horovodrun -np 2 --gloo python tf2_hvd_mnist.py --ratio 0.01
"""

import argparse
import time

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

import grace_dl as grace
import grace_dl.tensorflow
from grace_dl.data import load_images

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch", type=int, default=256, help="images in a step, of all workers together")
parser.add_argument(
    "--ratio", type=float, help="send this share of a gradient, its largest elements, and not all of it"
)
args = parser.parse_args()

hvd.init()  # 1. find the other workers
say = print if hvd.rank() == 0 else lambda *_: None
say(f"{hvd.size()} worker(s), {f'top-k with ratio {args.ratio}' if args.ratio else 'no compression'}")

keras.utils.set_random_seed(0)
images = load_images("mnist", report=say)
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

# 2. all start from the same weights (Keras 3 holds a TensorFlow variable in each of its own)
hvd.broadcast_variables([v.value for v in model.variables], root_rank=0)
# 3b. send gradients uncompressed or compressed
handle = grace_dl.tensorflow.handle(grace.topk(args.ratio) if args.ratio else grace.none())


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    tape = hvd.DistributedGradientTape(tape, grace=handle)  # 3. average the gradients of all workers
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


started = time.perf_counter()
steps = 0
for epoch in range(args.epochs):
    order = np.random.default_rng(epoch).permutation(len(train_x))
    for start in range(0, len(order), args.batch):
        batch = order[start : start + args.batch]
        batch = batch[hvd.rank() :: hvd.size()]  # 4. every worker takes its own part of the batch
        loss = step(train_x[batch], train_y[batch])
        steps += 1
    say(f"epoch {epoch + 1}: loss {float(loss):.3f}")
seconds = time.perf_counter() - started

accuracy = float(np.mean(np.argmax(model(test_x), 1) == test_y))
sent = handle.stats().payload_bytes // steps
traffic = (
    f"; {sent:,} bytes of gradients a worker and step" if hvd.size() > 1 else ""
)  # alone, nothing is sent
say(f"{steps} steps of {1000 * seconds / steps:.1f} ms{traffic}")
say(f"test accuracy {100 * accuracy:.2f} %")
