//! `vitrine devices`: the backends of this binary, and the devices of this machine.

use anyhow::Result;
use clap::Args;

use super::Status;
use crate::cli::output::outln;
use crate::device;

/// List backends and the devices found for them.
#[derive(Args)]
#[command(after_help = "Example:\n  vitrine devices")]
pub(super) struct Devices {}

impl Devices {
    pub(super) fn run(&self) -> Result<Status> {
        let default = device::select(None).ok().map(|(device, _)| device.name);
        for (backend, devices) in device::list() {
            if !backend.is_built() {
                outln!("{:10} not built in; build with --features {}", backend.name, backend.name)?;
            } else if devices.is_empty() {
                outln!("{:10} no device found", backend.name)?;
            }
            for device in devices {
                let works = if device.works() { "" } else { ", does not work: is its driver complete?" };
                let mark = if default.as_ref() == Some(&device.name) { " (default)" } else { "" };
                outln!("{:10} {}{works}{mark}", device.name, device.hardware())?;
            }
        }
        Ok(Status::Done)
    }
}
