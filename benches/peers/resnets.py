"""The convolutional networks for comparison: ResNet-18, and a small ResNet of about a million parameters."""
from torch import nn
from torchvision.models import resnet18
from torchvision.models.resnet import BasicBlock

SMALL_SIDE = 40  # up to this side, the first layer does not reduce the resolution


def small_stem(model, channels):
    """As He et al. 2016, section 4.2, for CIFAR: a 3x3 convolution of stride 1, no pooling."""
    model.conv1 = nn.Conv2d(channels, model.conv1.out_channels, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()


def resnet_18(classes, channels, side):
    model = resnet18(num_classes=classes, zero_init_residual=True)
    if side <= SMALL_SIDE:
        small_stem(model, channels)
    elif channels != 3:
        model.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    return model


class ResNet1M(nn.Module):
    """Three stages of basic blocks, wide and shallow, with 0.94 M parameters, for short training times."""

    def __init__(self, classes, channels, side, widths=(56, 112, 224), depths=(1, 1, 1)):
        super().__init__()
        stride = 1 if side <= SMALL_SIDE else 2
        self.stem = nn.Sequential(nn.Conv2d(channels, widths[0], 3, stride, 1, bias=False), nn.BatchNorm2d(widths[0]),
                                  nn.ReLU(inplace=True), nn.MaxPool2d(2) if side > 64 else nn.Identity())
        stages, width = [], widths[0]
        for stage, (next_width, depth) in enumerate(zip(widths, depths)):
            for block in range(depth):
                stride = 2 if stage and not block else 1
                stages.append(basic_block(width, next_width, stride))
                width = next_width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if isinstance(module, BasicBlock):
                nn.init.zeros_(module.bn2.weight)

    def forward(self, images):
        return self.head(self.stages(self.stem(images)).mean((2, 3)))


def basic_block(width, next_width, stride):
    shortcut = None
    if stride > 1 or width != next_width:
        shortcut = nn.Sequential(nn.Conv2d(width, next_width, 1, stride, bias=False), nn.BatchNorm2d(next_width))
    return BasicBlock(width, next_width, stride, shortcut)


MODELS = {"resnet-18": resnet_18, "resnet-1m": ResNet1M}
