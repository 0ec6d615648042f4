"""airbench94, the convolutional network and the recipe of Jordan 2024, "94% on CIFAR-10 in 3.29 Seconds on a Single
GPU" (arXiv:2404.00498), with the share of the time in place of the share of the steps.

What the paper does not say, because it knows CIFAR-10 alone: images of more than 40 pixels are whitened in patches that
do not overlap, so that the first group of convolutions sees about 32 x 32 of them; the last pooling takes the maximum of
the whole map, whatever its size; batches hold 512 images, and 128 if there are few.
"""
import torch
from torch import nn
from torch.nn import functional

WIDTHS = (64, 256, 256)
LEARNING_RATE = 11.5  # for 1024 images and what momentum adds of them later
WEIGHT_DECAY = 0.0153
MOMENTUM = 0.85
BIAS_SCALE = 64.0  # of the learning rate of batch norm's shifts
PEAK = 0.23  # share of the time at which the learning rate is highest
START, END = 0.2, 0.07  # shares of the highest learning rate
WHITENING_BIAS_UNTIL = 3 / 9.9  # share of the time
LABEL_SMOOTHING = 0.2
SHIFT = 2  # pixels, for images of 32
LOOKAHEAD_EVERY = 5  # steps
FEW_IMAGES = 5000


class Shift(nn.BatchNorm2d):
    """Batch norm whose scale stays 1."""

    def __init__(self, channels):
        super().__init__(channels, eps=1e-12, momentum=0.4)
        self.weight.requires_grad = False


class Group(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(convolution(inputs, outputs), nn.MaxPool2d(2), Shift(outputs), nn.GELU(),
                         convolution(outputs, outputs), Shift(outputs), nn.GELU())


def convolution(inputs, outputs):
    """A 3 x 3 convolution that begins as the identity on its first channels."""
    made = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.dirac_(made.weight.data[:inputs])
    return made


class Airbench94(nn.Module):
    def __init__(self, classes, channels, side):
        super().__init__()
        patch, stride = (2, 1) if side <= 40 else (-(-side // 32),) * 2
        self.whitening = nn.Conv2d(channels, 2 * channels * patch**2, patch, stride)
        self.whitening.weight.requires_grad = False
        widths = [self.whitening.out_channels, *WIDTHS]
        self.groups = nn.Sequential(*(Group(*pair) for pair in zip(widths, widths[1:])))
        self.head = nn.Linear(WIDTHS[-1], classes, bias=False)

    def forward(self, images):
        maps = self.groups(functional.gelu(self.whitening(images)))
        return self.head(maps.amax((2, 3))) / 9

    @torch.no_grad()
    def whiten(self, images):
        """Sets the first convolution to the directions in which patches of the images vary, scaled to variance 1, and
        their negatives."""
        patch, channels = self.whitening.kernel_size[0], images.shape[1]
        patches = images.unfold(2, patch, 1).unfold(3, patch, 1).permute(0, 2, 3, 1, 4, 5)
        patches = patches.reshape(-1, channels * patch**2)
        values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        scaled = (vectors / torch.sqrt(values.clamp(min=0) + 5e-4)).T.flip(0)
        scaled = scaled.reshape(-1, channels, patch, patch)
        self.whitening.weight.copy_(torch.cat([scaled, -scaled]))
        self.whitening.bias.zero_()


class Recipe:
    """Trains the network, and reads images in several views."""

    batch_size = staticmethod(lambda images: 512 if images >= FEW_IMAGES else 128)

    def __init__(self, model, data, args):
        self.model, self.data, self.args = model, data, args
        model.whiten(data.batch(torch.randperm(len(data.labels))[:5000])[0])
        examples = 1024 * (1 + 1 / (1 - MOMENTUM))
        self.rate = (args.learning_rate or LEARNING_RATE) / examples
        decay = WEIGHT_DECAY * args.batch_size / examples
        shifts = [p for name, p in model.named_parameters() if name.startswith("groups") and p.ndim == 1]
        kernels = [p for p in model.parameters() if p.ndim > 1 and p.requires_grad]
        groups = [(shifts, BIAS_SCALE), ([model.whitening.bias], 1.0), (kernels, 1.0)]
        groups = [{"params": [p for p in some if p.requires_grad], "scale": scale,
                   "weight_decay": decay / (self.rate * scale)} for some, scale in groups]
        self.optimizer = torch.optim.SGD(groups, lr=self.rate, momentum=MOMENTUM, nesterov=True)
        self.slow = {name: value.clone() for name, value in model.state_dict().items()}
        self.steps = 0
        self.mirrored = torch.rand(len(data.labels)) < 0.5

    def step(self, indices, done):
        """Takes a training step at a share of the time, and returns the loss before it."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * group["scale"] * triangle(done)
        self.model.whitening.bias.requires_grad = done < WHITENING_BIAS_UNTIL
        pixels, labels = self.data.batch(indices)
        pixels = self.augment(pixels, indices)
        with autocast(self.args):
            logits = self.model(pixels)
        loss = functional.cross_entropy(logits.float(), labels, label_smoothing=LABEL_SMOOTHING, reduction="sum")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        if self.steps % LOOKAHEAD_EVERY == 0:
            self.look_ahead(0.95**LOOKAHEAD_EVERY * done**3)
        return loss.detach() / len(labels)

    def augment(self, batch, indices):
        """Mirrors each image in every second of its turns, and shifts it with a reflected border."""
        if not self.args.no_flip:
            batch = torch.where(self.mirrored[indices][:, None, None, None], batch.flip(3), batch)
            self.mirrored[indices] = ~self.mirrored[indices]
        side = batch.shape[2]
        pad = max(1, round(SHIFT * side / 32))
        windows = functional.pad(batch, [pad] * 4, mode="reflect").unfold(2, side, 1).unfold(3, side, 1)
        down, right = torch.randint(2 * pad + 1, (2, len(batch)))
        return windows[torch.arange(len(batch)), :, down, right].contiguous(memory_format=torch.channels_last)

    @torch.no_grad()
    def look_ahead(self, decay):
        """Moves the slow weights toward the model's, and the model to them."""
        for name, value in self.model.state_dict().items():
            if value.is_floating_point() and name != "whitening.weight":
                self.slow[name].lerp_(value, 1 - decay)
                value.copy_(self.slow[name])

    def finish(self):
        self.look_ahead(1.0)

    def logits(self, pixels):
        """Of six views: the image and its mirror at weight 0.5, and both shifted by a pixel two ways at 0.25 each.
        Without mirrors, three."""
        side = pixels.shape[2]
        padded = functional.pad(pixels, [1] * 4, mode="reflect")
        shifted = [padded[:, :, :side, :side], padded[:, :, 2:, 2:]]
        return 0.5 * self.both(pixels) + 0.25 * sum(self.both(view) for view in shifted)

    def both(self, pixels):
        with autocast(self.args):
            if self.args.no_flip:
                return self.model(pixels.contiguous(memory_format=torch.channels_last)).float()
            views = [pixels, pixels.flip(3)]
            return sum(self.model(view.contiguous(memory_format=torch.channels_last)).float() for view in views) / 2


def triangle(done):
    """The share of the highest learning rate at a share of the time."""
    if done < PEAK:
        return START + (1 - START) * done / PEAK
    return max(END, 1 + (END - 1) * min(1.0, (done - PEAK) / (1 - PEAK)))


def autocast(args):
    return torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bfloat16")
