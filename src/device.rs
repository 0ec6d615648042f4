//! Compute devices: the table of burn's backends, the devices found on this machine, and the choice made by `--device`.

use std::panic::{self, AssertUnwindSafe};

use anyhow::{Result, bail};
use burn::tensor::{Device, Tensor};

use crate::recipe::Precision;
use crate::text::count;
use crate::usage::{UsageError, did_you_mean, usage};

#[cfg(not(any(
    feature = "flex",
    feature = "ndarray",
    feature = "wgpu",
    feature = "vulkan",
    feature = "metal",
    feature = "cuda",
    feature = "rocm"
)))]
compile_error!(
    "vitrine needs a backend: enable one of the features flex, ndarray, wgpu, vulkan, metal, cuda, rocm"
);

/// A compute backend of burn, which one cargo feature builds in.
pub struct Backend {
    /// The name of the cargo feature, and of the backend in `--device`.
    pub name: &'static str,
    /// Whether it runs on a GPU.
    pub is_gpu: bool,
    /// Lists the devices of this machine; `None` if the feature is not built in.
    enumerate: Option<fn() -> Vec<Device>>,
}

/// A device of this machine, with its name for `--device`.
#[derive(Clone, Debug)]
pub struct FoundDevice {
    /// burn's device, without automatic differentiation.
    pub device: Device,
    /// For example `flex` or `wgpu:0`.
    pub name: String,
    /// Whether it is a GPU. False for a software driver, which emulates a GPU on the CPU.
    pub is_gpu: bool,
}

/// The function that lists the devices of a backend, or `None` if the backend's cargo feature is off.
macro_rules! built {
    ($feature:literal, $list:expr) => {{
        #[cfg(feature = $feature)]
        let list: Option<fn() -> Vec<Device>> = Some(|| $list);
        #[cfg(not(feature = $feature))]
        let list: Option<fn() -> Vec<Device>> = None;
        list
    }};
}

/// All backends, in order of preference.
fn backends() -> [Backend; 7] {
    #[cfg(any(feature = "wgpu", feature = "cuda", feature = "rocm"))]
    use burn::tensor::DeviceType;
    let row = |name, is_gpu, enumerate| Backend { name, is_gpu, enumerate };
    [
        row("cuda", true, built!("cuda", Device::enumerate(DeviceType::Cuda).into_vec())),
        row("rocm", true, built!("rocm", Device::enumerate(DeviceType::Rocm).into_vec())),
        row("metal", true, built!("metal", Device::enumerate(DeviceType::Metal).into_vec())),
        row("vulkan", true, built!("vulkan", Device::enumerate(DeviceType::Vulkan).into_vec())),
        row("wgpu", true, built!("wgpu", Device::enumerate(DeviceType::Wgpu).into_vec())),
        row("flex", false, built!("flex", vec![Device::flex()])),
        row("ndarray", false, built!("ndarray", vec![ndarray()])),
    ]
}

/// The device of the backend ndarray. burn has deprecated this backend; vitrine keeps it for comparison.
#[cfg(feature = "ndarray")]
#[allow(deprecated)]
fn ndarray() -> Device {
    Device::ndarray()
}

impl FoundDevice {
    /// Whether training is no slower in this precision than in float32.
    pub fn suits(&self, precision: Precision) -> bool {
        precision == Precision::F32 || vitrine_kernels::multiplies_bfloat16(&self.device)
    }

    /// Checks that a stated precision makes training faster.
    ///
    /// # Errors
    /// If it does not.
    pub fn check_precision(&self, precision: Precision) -> Result<()> {
        if !self.suits(precision) {
            usage!("`precision = \"bf16\"` (--precision): {}; leave it out", self.slow_bfloat16());
        }
        Ok(())
    }

    /// The precision of a run that began elsewhere, or else float32 and a warning.
    pub fn precision_or_float32(&self, precision: Precision) -> (Precision, Option<String>) {
        if self.suits(precision) {
            return (precision, None);
        }
        (Precision::F32, Some(format!("the run goes on in float32: {}", self.slow_bfloat16())))
    }

    /// Why products of bfloat16 numbers are not faster.
    pub fn slow_bfloat16(&self) -> String {
        format!(
            "{} does not multiply bfloat16 numbers faster here, which takes flex on a processor with AVX512-BF16 (AMD since Zen 4) and without \
             AMX, whose products of float32 are faster still",
            self.name
        )
    }
}

impl Backend {
    /// Whether this binary was built with the backend's cargo feature.
    pub fn is_built(&self) -> bool {
        self.enumerate.is_some()
    }

    /// The devices of this backend on this machine; empty if the driver is missing.
    pub fn devices(&self) -> Vec<FoundDevice> {
        let Some(enumerate) = self.enumerate else { return Vec::new() };
        let devices = catch_panic(enumerate).unwrap_or_default();
        let device_name =
            |index| if self.is_gpu { format!("{}:{index}", self.name) } else { self.name.to_owned() };
        devices
            .into_iter()
            .enumerate()
            .map(|(index, device)| FoundDevice {
                name: device_name(index),
                is_gpu: self.is_gpu && !format!("{device:?}").contains("Cpu"),
                device,
            })
            .collect()
    }
}

impl FoundDevice {
    /// The name of the GPU as its driver states it, or else the number of CPU threads.
    pub fn hardware(&self) -> String {
        #[cfg(any(feature = "wgpu", feature = "cuda", feature = "rocm"))]
        if let Some(Some(identity)) = catch_panic(|| self.device.identity()) {
            return identity.name;
        }
        format!("CPU, {}", count(crate::threads::by_default(), "thread"))
    }

    /// Whether the device computes a small sum correctly. A device that its driver lists need not be able to compute.
    pub fn works(&self) -> bool {
        let sum = || Tensor::<1>::ones([8], &self.device).sum().into_scalar::<f32>();
        catch_panic(sum) == Some(8.0)
    }
}

/// The result of a call, or `None` if it panics, as drivers may do. The panic is not printed.
fn catch_panic<T>(call: impl FnOnce() -> T) -> Option<T> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let result = panic::catch_unwind(AssertUnwindSafe(call));
    panic::set_hook(hook);
    result.ok()
}

/// Every backend with the devices found for it.
pub fn list() -> Vec<(Backend, Vec<FoundDevice>)> {
    backends()
        .into_iter()
        .map(|backend| {
            let devices = backend.devices();
            (backend, devices)
        })
        .collect()
}

/// The device that `--device` names. Without a name, it is the first GPU that works, or else the CPU.
///
/// The second value is a message for the user if the choice may be unexpected.
///
/// # Errors
/// If the binary lacks the backend (the message names the cargo feature), or the machine lacks the device.
pub fn select(wanted: Option<&str>) -> Result<(FoundDevice, Option<String>)> {
    match wanted {
        None => default_device(),
        Some("cpu") => match first_working(false) {
            Some(device) => Ok((device, None)),
            None => bail!("--device cpu: this binary has no CPU backend; build it with `--features flex`"),
        },
        Some("gpu") => match first_working(true) {
            Some(device) => Ok(with_message(device)),
            None if backends().iter().any(|backend| backend.is_gpu && backend.is_built()) => {
                bail!("--device gpu: no GPU was found on this machine; `vitrine devices` lists what there is")
            }
            None => bail!("--device gpu: this binary was built without a GPU backend; {}", gpu_features()),
        },
        Some(name) => select_named(name).map(with_message),
    }
}

/// The device with a message, if it is a GPU, that it may take long to begin: for each kind of GPU and shape of tensors, burn
/// measures which kernels are fastest. The choices are kept in the user's cache folder.
fn with_message(device: FoundDevice) -> (FoundDevice, Option<String>) {
    let message = device.is_gpu.then(|| {
        format!(
            "device: {} ({}); the first batches can take minutes, until its kernels are chosen and compiled",
            device.name,
            device.hardware()
        )
    });
    (device, message)
}

fn gpu_features() -> String {
    let names: Vec<&str> = backends().iter().filter(|backend| backend.is_gpu).map(|b| b.name).collect();
    format!("build it with one of `--features {}`", names.join("`, `--features "))
}

fn first_working(is_gpu: bool) -> Option<FoundDevice> {
    backends()
        .iter()
        .filter(|backend| backend.is_gpu == is_gpu)
        .flat_map(Backend::devices)
        .find(|device| device.is_gpu == is_gpu && device.works())
}

fn default_device() -> Result<(FoundDevice, Option<String>)> {
    let has_gpu_backend = backends().iter().any(|backend| backend.is_gpu && backend.is_built());
    if has_gpu_backend && let Some(device) = first_working(true) {
        return Ok(with_message(device));
    }
    let message = has_gpu_backend.then(|| "device: no GPU was found, so the CPU is used".to_owned());
    match first_working(false) {
        Some(device) => Ok((device, message)),
        None => bail!(
            "no GPU was found and this binary has no CPU backend; build it with `--features flex`, \
             or choose from `vitrine devices`"
        ),
    }
}

/// The backend and the index that the name of a device states. This binary or machine may lack the device.
fn parse(wanted: &str) -> Result<(Backend, usize), String> {
    let (name, index) = match wanted.split_once(':') {
        Some((name, index)) => match index.parse() {
            Ok(index) => (name, index),
            Err(_) => return Err(format!("`{index}` is not a device number")),
        },
        None => (wanted, 0),
    };
    let names = backends().map(|backend| backend.name);
    match backends().into_iter().find(|backend| backend.name == name) {
        Some(backend) => Ok((backend, index)),
        None => Err(format!(
            "there is no such device; choose cpu, gpu or one of {}{}",
            names.join(", "),
            did_you_mean(name, names)
        )),
    }
}

/// Checks that `wanted` is the name of a device that some build of vitrine may use, and returns it. [`select`] checks
/// whether this build and this machine have the device.
///
/// # Errors
/// If there is no backend of that name; the message lists the names.
pub fn known(wanted: &str) -> Result<String, String> {
    match wanted {
        "cpu" | "gpu" => Ok(wanted.to_owned()),
        _ => parse(wanted).map(|_| wanted.to_owned()),
    }
}

fn select_named(wanted: &str) -> Result<FoundDevice> {
    let (backend, index) =
        parse(wanted).map_err(|problem| UsageError::new(format!("--device {wanted}: {problem}")))?;
    let name = backend.name;
    if !backend.is_built() {
        bail!("--device {wanted}: this binary was built without `{name}`; build it with `--features {name}`");
    }
    let devices = backend.devices();
    let count = devices.len();
    let Some(device) = devices.into_iter().nth(index) else {
        bail!("--device {wanted}: this machine has {count} `{name}` devices; `vitrine devices` lists them");
    };
    if !device.works() {
        bail!("--device {wanted}: the device was found but does not work; is its driver complete?");
    }
    Ok(device)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_precision_that_gains_nothing_is_refused_and_does_not_stop_an_earlier_run() {
        let (device, _) = select(None).unwrap();
        let suits = device.suits(Precision::Bf16);
        assert!(device.check_precision(Precision::F32).is_ok());
        let refused = device.check_precision(Precision::Bf16).map_err(|error| error.to_string());
        assert_eq!(refused.is_ok(), suits);
        for part in ["--precision", "AVX512-BF16", &device.name] {
            assert!(refused.as_ref().err().is_none_or(|message| message.contains(part)), "{refused:?}");
        }
        assert_eq!(device.precision_or_float32(Precision::F32), (Precision::F32, None));
        let (precision, warning) = device.precision_or_float32(Precision::Bf16);
        assert_eq!((precision == Precision::Bf16, warning.is_none()), (suits, suits));
        assert!(warning.is_none_or(|warning| warning.contains("goes on in float32")));
    }

    #[test]
    fn the_default_device_computes() {
        let (device, _) = select(None).unwrap();
        assert!(device.works());
        assert_eq!(select_named(&device.name).unwrap().name, device.name);
    }

    #[test]
    fn error_messages_name_the_feature_to_build_or_the_devices() {
        let message = |wanted| select(Some(wanted)).unwrap_err().to_string();
        assert!(message("abacus").contains("flex"), "{}", message("abacus"));
        assert!(message("flex:x").contains("device number"));
        for backend in backends().iter().filter(|backend| !backend.is_built()) {
            assert!(message(backend.name).contains(&format!("--features {}", backend.name)));
        }
    }
}
