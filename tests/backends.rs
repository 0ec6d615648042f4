//! Every backend of this build that has a device on this machine trains a model, and computes the CPU's logits.

#![allow(clippy::unwrap_used)]

mod support;

use burn::tensor::{Device, Distribution, Tensor, TensorData};
use serde_json::Value;
use support::{Images, TINY, vitrine};
use vitrine::device::{self, FoundDevice};
use vitrine::learner::Learner;
use vitrine::recipe::Recipe;
use vitrine_models::weights::{from_timm, to_timm};
use vitrine_models::{ModelConfig, preset};

/// The first device of each backend, if it works, or only the device that `VITRINE_DEVICE` names.
fn devices() -> Vec<FoundDevice> {
    if let Ok(name) = std::env::var("VITRINE_DEVICE") {
        return vec![device::select(Some(&name)).unwrap().0];
    }
    device::list()
        .into_iter()
        .filter_map(|(_, devices)| devices.into_iter().next())
        .filter(FoundDevice::works)
        .collect()
}

/// Logits of four images after three training steps on another four.
fn trained_logits(config: &ModelConfig, device: &Device, numbers: &[f32]) -> Vec<f32> {
    let tracked = device.clone().autodiff();
    let weights = config.init(&cpu()).unwrap();
    cpu().seed(3);
    weights.initialize();
    let model = from_timm(config.init(&tracked).unwrap(), to_timm(&weights)).unwrap();
    let images = Tensor::<4>::from_data(TensorData::new(numbers.to_vec(), [4, 3, 32, 32]), &tracked);
    let targets: Vec<f32> = (0..40).map(|i| f32::from(i % 10 == i / 10)).collect();
    let targets = Tensor::<2>::from_data(TensorData::new(targets, [4, 10]), &tracked);
    let recipe = Recipe::default();
    let mut learner = Learner::new(model, &recipe);
    for number in 1..=3 {
        learner.backward(&recipe, images.clone(), targets.clone(), 0);
        learner.update(&recipe, 1e-3, number);
    }
    learner.model.forward(images).into_data().iter::<f32>().collect()
}

fn cpu() -> Device {
    device::select(Some("cpu")).unwrap().0.device
}

#[test]
fn every_device_gives_the_cpus_logits_after_three_training_steps() {
    let config = ModelConfig { depth: 2.into(), ..preset::find("vit_pico_patch4_32").unwrap() };
    let numbers = Tensor::<1>::random([4 * 3 * 32 * 32], Distribution::Normal(0.0, 1.0), &cpu());
    let numbers: Vec<f32> = numbers.into_data().iter::<f32>().collect();
    let expected = trained_logits(&config, &cpu(), &numbers);
    assert!(expected.iter().any(|logit| logit.abs() > 0.01), "{expected:?}");
    let devices = devices();
    assert!(!devices.is_empty());
    for found in devices {
        let logits = trained_logits(&config, &found.device, &numbers);
        for (a, b) in logits.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-3, "{}: {a} instead of {b} on the CPU", found.name);
        }
    }
}

#[test]
fn every_device_trains_and_classifies_from_the_command_line() {
    let images = Images::new();
    images.fill("data/red", [200, 30, 30], 8);
    images.fill("data/blue", [30, 30, 200], 8);
    images.write("tiny.toml", TINY);
    for (number, found) in devices().into_iter().enumerate() {
        let run = format!("run{number}");
        vitrine(&images)
            .args([
                "train",
                "data",
                "--model",
                "tiny.toml",
                "--epochs",
                "2",
                "--batch-size",
                "4",
                "--output",
                &run,
            ])
            .args(["--device", &found.name])
            .assert()
            .success();
        let logits = |device: &str| -> Vec<f64> {
            let output = vitrine(&images)
                .args(["classify", &run, "data", "--format", "jsonl", "--logits", "--device", device])
                .assert()
                .success();
            let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
            let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            lines
                .flat_map(|line| line["logits"].as_array().unwrap().clone())
                .map(|v| v.as_f64().unwrap())
                .collect()
        };
        let (on_device, on_cpu) = (logits(&found.name), logits("cpu"));
        assert_eq!(on_device.len(), 32);
        for (a, b) in on_device.iter().zip(&on_cpu) {
            assert!((a - b).abs() < 1e-3, "{}: {a} instead of {b} on the CPU", found.name);
        }
    }
}
