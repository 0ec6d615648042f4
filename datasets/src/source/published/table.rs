//! The table of published data sets: files, addresses, hashes, and class names.

use super::Published;
use crate::source::download::RemoteFile;

const MNIST_URL: &str = "https://storage.googleapis.com/cvdf-datasets/mnist/";
const FASHION_URL: &str = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/";
const CIFAR_URL: &str = "https://www.cs.toronto.edu/~kriz/";

const IDX_FILES: &[&str] = &[
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];

pub(super) const fn remote(
    base_url: &'static str,
    name: &'static str,
    bytes: u64,
    sha256: &'static str,
) -> RemoteFile {
    RemoteFile { name, base_url, sha256, bytes }
}

/// All published data sets, with the hashes that TensorFlow Datasets also uses.
pub(crate) const PUBLISHED: [Published; 4] = [
    Published {
        name: "mnist",
        folders: &["mnist", "mnist/raw", "MNIST/raw"],
        files: IDX_FILES,
        remote: &[
            remote(
                MNIST_URL,
                "train-images-idx3-ubyte.gz",
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            remote(
                MNIST_URL,
                "train-labels-idx1-ubyte.gz",
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            remote(
                MNIST_URL,
                "t10k-images-idx3-ubyte.gz",
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            remote(
                MNIST_URL,
                "t10k-labels-idx1-ubyte.gz",
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ],
        is_archive: false,
        classes: &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"],
        flip_safe: false,
    },
    Published {
        name: "fashion-mnist",
        folders: &["fashion-mnist", "fashion-mnist/raw", "FashionMNIST/raw"],
        files: IDX_FILES,
        remote: &[
            remote(
                FASHION_URL,
                "train-images-idx3-ubyte.gz",
                26_421_880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            remote(
                FASHION_URL,
                "train-labels-idx1-ubyte.gz",
                29_515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            remote(
                FASHION_URL,
                "t10k-images-idx3-ubyte.gz",
                4_422_102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            remote(
                FASHION_URL,
                "t10k-labels-idx1-ubyte.gz",
                5_148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ],
        is_archive: false,
        classes: &[
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ],
        flip_safe: true,
    },
    Published {
        name: "cifar10",
        folders: &["cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"],
        files: &[
            "data_batch_1.bin",
            "data_batch_2.bin",
            "data_batch_3.bin",
            "data_batch_4.bin",
            "data_batch_5.bin",
            "test_batch.bin",
        ],
        remote: &[remote(
            CIFAR_URL,
            "cifar-10-binary.tar.gz",
            170_052_171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        )],
        is_archive: true,
        classes: &[],
        flip_safe: true,
    },
    Published {
        name: "cifar100",
        folders: &["cifar100", "cifar100/cifar-100-binary", "cifar-100-binary"],
        files: &["train.bin", "test.bin", "fine_label_names.txt"],
        remote: &[remote(
            CIFAR_URL,
            "cifar-100-binary.tar.gz",
            168_513_733,
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        )],
        is_archive: true,
        classes: &[],
        flip_safe: true,
    },
];
