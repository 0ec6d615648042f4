//! Parity of models whose parts no library has in this form with their definitions in PyTorch
//! (`tests/reference/make_variants.py`).

use safetensors::SafeTensors;
use vitrine_models::ModelConfig;
use vitrine_models::weights::{NamedTensor, from_timm, to_timm};

use super::Gradient;
use super::reference::{
    Arrays, arrays, assert_close, assert_gradient_close, fixture, tensor, tested_device, values,
};

/// The names of the fixtures, each a file of one model.
fn cases() -> Vec<String> {
    let files = std::fs::read_dir(fixture("variants")).unwrap();
    files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

/// The configuration in the metadata of a fixture.
fn configuration(file: &str) -> ModelConfig {
    let bytes = std::fs::read(fixture("variants").join(file)).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    serde_json::from_str(&header.metadata().as_ref().unwrap()["config"]).unwrap()
}

#[test]
fn logits_and_gradients_of_variants() {
    let (device, tolerance) = tested_device();
    let device = device.autodiff();
    let cases = cases();
    assert!(!cases.is_empty());
    for case in cases {
        let io = arrays("variants", &case);
        let named = |prefix: &str| -> Vec<NamedTensor> {
            let named = io.iter().filter_map(|(name, array)| Some((name.strip_prefix(prefix)?, array)));
            named.map(|(name, array)| NamedTensor { name: name.to_owned(), ..array.clone() }).collect()
        };
        let fresh = configuration(&case).init(&device).unwrap();
        let model = from_timm(fresh, named("weight.")).unwrap_or_else(|error| panic!("{case}: {error}"));
        let logits = model.forward(tensor::<4>(&io["input"], &device));
        assert_close(&format!("{case}: logits"), &values(logits.clone()), &io["logits"].values, tolerance);
        let grads = logits.powf_scalar(2.0).mean().backward();
        let model = burn::module::Module::map(model, &mut Gradient(&grads));
        let ours: Arrays = to_timm(&model).into_iter().map(|grad| (grad.name.clone(), grad)).collect();
        for expected in named("grad.") {
            let what = format!("{case}: gradient of {}", expected.name);
            assert_gradient_close(&what, &ours[&expected.name].values, &expected.values, tolerance);
        }
    }
}
