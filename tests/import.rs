//! Weights of other libraries that are not quite what they seem: equal, or refused, and never silently another model.

#![allow(clippy::unwrap_used)]

#[path = "support/reference.rs"]
mod reference;

use std::collections::BTreeMap;
use std::path::Path;

use assert_cmd::Command;
use reference::fixture;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use vitrine::import::{self, Imported, Options};
use vitrine_models::weights::{NamedTensor, adapt};
use vitrine_models::{ImageSize, ModelConfig};

/// The folders in `tests/fixtures` that hold a model of each library and family.
const CASES: [&str; 13] = [
    "hf_dinov2_registers",
    "hf_siglip",
    "hf_swin",
    "hf_vit",
    "timm_deit_distilled",
    "timm_swin",
    "timm_swin_padded",
    "timm_swinv2",
    "timm_vit",
    "timm_vit_avgpool_reg_layerscale",
    "timm_vit_map_qknorm",
    "torchvision_swin",
    "torchvision_vit",
];

/// A tensor as it is stored.
#[derive(Clone)]
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

type File = BTreeMap<String, Stored>;

fn stored(case: &str) -> File {
    let bytes = std::fs::read(fixture(case).join("weights.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let stored = |view: &TensorView| Stored {
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        bytes: view.data().to_vec(),
    };
    file.iter().map(|(name, view)| (name.to_owned(), stored(&view))).collect()
}

fn config(case: &str) -> Value {
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(fixture(case).join("config.json")).unwrap()).unwrap();
    if case == "torchvision_swin" {
        config["image_size"] = json!(32);
    }
    config
}

/// A folder with these weights and this configuration.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(file: &File, config: Option<&Value>) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.weights("model.safetensors", file);
        if let Some(config) = config {
            std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        }
        folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn weights(&self, name: &str, file: &File) {
        let views = file.iter().map(|(name, tensor)| {
            (name, TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes).unwrap())
        });
        safetensors::serialize_to_file(views, None, &self.path().join(name)).unwrap();
    }

    fn load(&self) -> Result<Imported, String> {
        load(self.path(), &Options::default())
    }
}

fn load(path: &Path, options: &Options) -> Result<Imported, String> {
    import::load(path, options).map_err(|error| format!("{error:#}"))
}

/// What is computed with: the architecture and every value.
fn computed(imported: Imported) -> (ModelConfig, BTreeMap<String, NamedTensor>) {
    let tensors = imported.tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    (imported.card.model, tensors)
}

fn transposed(tensor: &Stored) -> Option<Stored> {
    let [rows, columns, ref rest @ ..] = tensor.shape[..] else { return None };
    let item = tensor.bytes.len() / (rows * columns).max(1);
    let item = |row: usize, column: usize| &tensor.bytes[(row * columns + column) * item..][..item];
    let bytes = (0..columns).flat_map(|column| (0..rows).flat_map(move |row| item(row, column))).copied();
    // Where both are as long, no shape tells, and no library notices.
    (rows != columns).then(|| Stored {
        shape: [&[columns, rows], rest].concat(),
        bytes: bytes.collect(),
        ..tensor.clone()
    })
}

#[test]
fn a_tensor_that_is_dropped_renamed_or_transposed_is_refused_or_was_not_needed() {
    for case in CASES {
        let (file, config) = (stored(case), config(case));
        let whole =
            Folder::new(&file, Some(&config)).load().unwrap_or_else(|error| panic!("{case}: {error}"));
        let has_head = whole.has_head;
        let whole = computed(whole);
        for (name, tensor) in &file {
            let mut without = file.clone();
            without.remove(name);
            let mut renamed = without.clone();
            renamed.insert(format!("{name}_"), tensor.clone());
            let transposed = transposed(tensor).map(|tensor| {
                let mut file = file.clone();
                file.insert(name.clone(), tensor);
                file
            });
            for (how, file) in
                [("dropped", Some(without)), ("renamed", Some(renamed)), ("transposed", transposed)]
            {
                let Some(Ok(imported)) = file.map(|file| Folder::new(&file, Some(&config)).load()) else {
                    continue;
                };
                // A command that needs a classifier refuses what has none.
                if has_head == imported.has_head {
                    assert!(computed(imported) == whole, "{case}: {name} {how}");
                }
            }
        }
    }
}

/// Keys that the weights cannot contradict: the library computes with what they say, and so do we.
const HONORED: [&str; 9] = [
    "layer_norm_eps",
    "num_heads",
    "num_attention_heads",
    "hidden_act",
    "window_size",
    "image_size",
    "img_size",
    "architectures",
    "model",
];

/// Other values of the same kind.
fn other_values(value: &Value) -> Vec<Value> {
    match value {
        Value::Bool(value) => vec![json!(!value)],
        Value::Number(number) => match number.as_u64() {
            Some(number) => vec![json!(number + 1), json!(number * 2)],
            None => vec![json!(number.as_f64().unwrap() * 2.0)],
        },
        Value::String(_) => vec![json!("other")],
        Value::Array(values) => values.first().map(|_| json!(values[1..])).into_iter().collect(),
        Value::Object(values) => {
            let mut fewer = values.clone();
            fewer.retain(|key, _| key != "0" && key != "LABEL_0");
            vec![Value::Object(fewer)]
        }
        Value::Null => Vec::new(),
    }
}

#[test]
fn a_key_of_a_configuration_that_is_dropped_changed_or_added_is_honored_refused_or_harmless() {
    for case in CASES {
        let (file, config) = (stored(case), config(case));
        let whole = computed(Folder::new(&file, Some(&config)).load().unwrap());
        let keys: Vec<String> = config.as_object().unwrap().keys().cloned().collect();
        for key in keys {
            let mut dropped = config.clone();
            dropped.as_object_mut().unwrap().remove(&key);
            let mut changed: Vec<(String, Value)> = vec![("dropped".to_owned(), dropped)];
            for value in other_values(&config[&key]) {
                let mut other = config.clone();
                other[&key] = value.clone();
                changed.push((value.to_string(), other));
            }
            for (how, config) in changed {
                let Ok(imported) = Folder::new(&file, Some(&config)).load() else { continue };
                let same = computed(imported) == whole;
                assert!(same || HONORED.contains(&key.as_str()), "{case}: {key} {how}");
            }
        }
        let mut more = config.clone();
        more["surprise"] = json!(1);
        let error = Folder::new(&file, Some(&more)).load().err().unwrap_or_else(|| panic!("{case}"));
        assert!(error.contains("surprise"), "{error}");
    }
}

#[test]
fn what_a_configuration_states_is_compared_with_the_tensors() {
    let cases: [(&str, &str, Value, &str); 15] = [
        ("hf_vit", "num_hidden_layers", json!(3), "depth: 3 is stated, and the weights have 2"),
        ("hf_vit", "hidden_size", json!(96), "embed_dim"),
        ("hf_vit", "intermediate_size", json!(96), "width of the MLPs"),
        ("hf_vit", "patch_size", json!(16), "patch_size"),
        ("hf_vit", "image_size", json!(64), "image_size"),
        ("hf_vit", "qkv_bias", json!(false), "qkv_bias"),
        ("hf_vit", "num_labels", json!(7), "num_classes"),
        ("hf_vit", "model_type", json!("beit"), "relative positions"),
        ("hf_vit", "model_type", json!("dinov3_vit"), "rotary positions"),
        ("hf_vit", "architectures", json!(["ViTForMaskedImageModeling"]), "ViTForMaskedImageModeling"),
        ("hf_swin", "depths", json!([2, 2, 2]), "depth"),
        ("hf_swin", "layer_norm_eps", json!(1e-6), "norms of two kinds"),
        ("hf_swin", "window_size", json!(2), "window: 2 is stated, and the weights have 4"),
        ("timm_vit_avgpool_reg_layerscale", "reg_tokens", json!(0), "registers"),
        ("timm_vit", "model", json!("Eva"), "Eva is not supported"),
    ];
    for (case, key, value, part) in cases {
        let mut config = config(case);
        config[key] = value;
        let error =
            Folder::new(&stored(case), Some(&config)).load().err().unwrap_or_else(|| panic!("{case}: {key}"));
        assert!(error.contains(part), "{case}: {key}: {error}");
    }
}

#[test]
fn images_are_prepared_in_the_size_that_a_classifier_is_for() {
    for (side, fits) in [(32, true), (64, false)] {
        let folder = Folder::new(&stored("hf_swin"), Some(&config("hf_swin")));
        let preprocessor = json!({
            "image_processor_type": "ViTImageProcessor", "do_resize": true, "do_center_crop": false, "do_normalize": true,
            "do_rescale": true, "size": { "height": side, "width": side }, "resample": 3, "rescale_factor": 1.0 / 255.0,
            "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        });
        std::fs::write(folder.path().join("preprocessor_config.json"), preprocessor.to_string()).unwrap();
        let loaded = folder.load();
        assert_eq!(loaded.is_ok(), fits, "{side}: {:?}", loaded.err());
    }
}

/// Preprocessing of Hugging Face that cuts the center out of the scaled image, as that of DINOv2.
fn cropping(side: usize) -> Value {
    json!({
        "image_processor_type": "BitImageProcessor", "do_resize": true, "do_center_crop": true, "do_normalize": true,
        "do_rescale": true, "size": { "shortest_edge": side + side / 8 }, "crop_size": { "height": side, "width": side },
        "resample": 3, "rescale_factor": 1.0 / 255.0, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    })
}

fn with_size(side: usize) -> Options {
    Options { image_size: Some([side, side]), ..Options::default() }
}

#[test]
fn a_backbone_whose_preprocessing_is_for_another_size_than_its_positions_is_no_fault() {
    let case = "hf_dinov2_registers";
    let folder = Folder::new(&stored(case), Some(&config(case)));
    let preprocessor = folder.path().join("preprocessor_config.json");
    std::fs::write(&preprocessor, cropping(16).to_string()).unwrap();
    let as_it_is = folder.load().unwrap();
    assert_eq!(as_it_is.account.warnings, Vec::<String>::new());
    // The positions stay as they are stored until it is known what they are for.
    assert_eq!(as_it_is.card.model.image_size, ImageSize::square(32));
    assert_eq!(as_it_is.card.preprocessing.image_size, [16, 16]);
    for side in [16, 24, 32, 64] {
        let imported = load(folder.path(), &with_size(side)).unwrap();
        assert_eq!(imported.account.warnings, Vec::<String>::new(), "{side}");
        let is_resampled = imported.account.notes.iter().any(|note| note.contains("positions resampled"));
        assert_eq!(is_resampled, side != 32, "{side}");
        assert_eq!(imported.card.preprocessing.image_size, [side, side]);
        assert_eq!(
            imported.card.preprocessing.resize,
            vitrine_datasets::ResizeRule::ShorterSide { crop: 16.0 / 18.0 }
        );
        // As training resamples them.
        let wanted = ModelConfig { image_size: ImageSize::square(side), ..as_it_is.card.model.clone() };
        let expected = adapt(as_it_is.tensors.clone(), &as_it_is.card.model, &wanted, true).tensors;
        assert_eq!(imported.card.model, wanted);
        assert!(imported.tensors == expected, "{side}");
    }
    let error = load(folder.path(), &with_size(20)).err().unwrap();
    assert!(error.contains("--image-size 20x20") && error.contains("patch"), "{error}");
    // No size that its patches can have: said, and the stored size is kept.
    std::fs::write(&preprocessor, cropping(20).to_string()).unwrap();
    let odd = folder.load().unwrap();
    assert_eq!(odd.card.preprocessing.image_size, [32, 32]);
    assert!(
        odd.account.warnings.iter().any(|warning| warning.contains("20x20")),
        "{:?}",
        odd.account.warnings
    );
    // Shapes contradict a size that the configuration states, whatever is asked for.
    let mut wrong = config(case);
    wrong["image_size"] = json!(64);
    let folder = Folder::new(&stored(case), Some(&wrong));
    assert!(load(folder.path(), &with_size(64)).err().unwrap().contains("`pos_embed` holds"));
}

#[test]
fn a_classifier_is_imported_for_another_size() {
    let with_config = Folder::new(&stored("timm_vit"), Some(&timm_folder("vit_base_patch16_224")));
    let alone = Folder::new(&stored("timm_vit"), None);
    for (folder, heads) in [(&with_config, None), (&alone, Some(vec![3]))] {
        let imported = load(folder.path(), &Options { heads, ..with_size(48) }).unwrap();
        assert_eq!(imported.card.model.image_size, ImageSize::square(48));
        assert_eq!(imported.card.preprocessing.image_size, [48, 48]);
        assert!(
            imported.has_head && imported.account.notes.iter().any(|note| note.contains("[4, 4] to [6, 6]"))
        );
        imported.model(&burn::tensor::Device::default()).unwrap();
    }
    let error = load(with_config.path(), &with_size(36)).err().unwrap();
    assert!(error.contains("--image-size 36x36"), "{error}");
    // Windows of 4 do not divide a grid of 5.
    let swin = Folder::new(&stored("hf_swin"), Some(&config("hf_swin")));
    let error = load(swin.path(), &with_size(40)).err().unwrap();
    assert!(error.contains("--image-size 40x40") && error.contains("windows"), "{error}");
    // Preprocessing for another size is an error until the user chooses one of the two.
    std::fs::write(swin.path().join("preprocessor_config.json"), cropping(64).to_string()).unwrap();
    let error = swin.load().err().unwrap();
    assert!(error.contains("64x64") && error.contains("--image-size"), "{error}");
    assert!(load(swin.path(), &with_size(32)).is_ok());
}

/// timm's folder for the weights of `timm_vit`.
fn timm_folder(architecture: &str) -> Value {
    json!({
        "architecture": architecture,
        "num_classes": 10,
        "model_args": { "img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3 },
        "pretrained_cfg": { "input_size": [3, 32, 32], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5],
            "crop_pct": 0.9, "interpolation": "bicubic" },
    })
}

#[test]
fn timms_architectures_are_accepted_by_name() {
    let file = stored("timm_vit");
    let imported = Folder::new(&file, Some(&timm_folder("vit_base_patch16_224.augreg_in1k"))).load().unwrap();
    assert_eq!(imported.account.warnings, Vec::<String>::new());
    for (name, part) in [
        ("vit_small_patch16_rope_224", "rotary positions"),
        ("vit_small_patch16_rope_ape_224", "rotary positions"),
        ("vit_base_patch16_rpn_224", "another kind of block"),
        ("vit_small_patch16_dinov3", "rotary positions"),
        ("beit_base_patch16_224", "BEiT"),
        ("vit_base_r50_s16_224", "hybrid stem"),
        ("vit_base_patch16_clip_224", "CLIP"),
        ("resnet50", "resnet50"),
        ("test_vit", "width of the MLPs"),
        ("deit_base_distilled_patch16_224", "distillation_token"),
    ] {
        let error =
            Folder::new(&file, Some(&timm_folder(name))).load().err().unwrap_or_else(|| panic!("{name}"));
        assert!(error.contains(part), "{name}: {error}");
    }
    // The depth that the name stands for holds where no argument says another.
    let mut config = timm_folder("vit_base_patch16_224");
    config["model_args"].as_object_mut().unwrap().remove("depth");
    let error = Folder::new(&file, Some(&config)).load().err().unwrap();
    assert!(error.contains("depth: 12 is stated, and the weights have 2"), "{error}");
    config["model_args"]["depth"] = json!(2);
    config["model_args"]["act_layer"] = json!("gelu_tanh");
    let imported = Folder::new(&file, Some(&config)).load().unwrap();
    assert_eq!(imported.card.model.mlp, vitrine_models::MlpKind::GeluTanh);
    let mut larger = config.clone();
    larger["pretrained_cfg"]["input_size"] = json!([3, 64, 64]);
    assert!(Folder::new(&file, Some(&larger)).load().err().unwrap().contains("resamples its positions"));
    config["model_args"]["act_layer"] = json!("quick_gelu");
    assert!(Folder::new(&file, Some(&config)).load().err().unwrap().contains("quick_gelu"));
}

#[test]
fn files_are_held_to_the_architecture_that_their_name_says() {
    let folder = Folder::new(&stored("timm_vit"), None);
    for (name, part) in [
        ("vit_tiny_patch16_224.safetensors", "embed_dim: 192 is stated, and the weights have 48"),
        ("vit_small_patch16_rope_ape_224.safetensors", "rotary positions"),
    ] {
        folder.weights(name, &stored("timm_vit"));
        let error = load(&folder.path().join(name), &Options::default()).err().unwrap();
        assert!(error.contains(part), "{name}: {error}");
    }
    let options = Options { config: Some("vit_tiny_patch16_224".to_owned()), ..Options::default() };
    let error = load(folder.path(), &options).err().unwrap();
    assert!(error.contains("--config vit_tiny_patch16_224") && error.contains("embed_dim"), "{error}");
}

#[test]
fn positions_are_never_inferred_to_be_absent() {
    let mut file = stored("timm_vit");
    file.remove("pos_embed");
    let error = Folder::new(&file, Some(&config("timm_vit"))).load().err().unwrap();
    assert!(error.contains("rotary or relative"), "{error}");
}

#[test]
fn a_model_with_a_teacher_needs_both_heads() {
    let mut file = stored("timm_deit_distilled");
    file.retain(|name, _| !name.starts_with("head_dist."));
    assert!(Folder::new(&file, Some(&config("timm_deit_distilled"))).load().is_err());
    assert!(Folder::new(&file, None).load().is_err());
}

#[test]
fn a_guess_is_warned_of_and_can_be_stated() {
    let mut file = stored("timm_vit");
    // 64 wide, so that there is something to guess: one head for the usual width, two in truth.
    file = widened(file);
    let folder = Folder::new(&file, None);
    let guessed = folder.load().unwrap();
    let warnings = guessed.account.warnings.join("\n");
    assert!(warnings.contains("1 heads are guessed") && warnings.contains("--heads"), "{warnings}");
    assert!(warnings.contains("mean and deviation") && warnings.contains("--mean"), "{warnings}");
    let stated = Options {
        heads: Some(vec![2]),
        image_size: Some([32, 32]),
        mean: Some(vec![0.1, 0.2, 0.3]),
        std: Some(vec![0.5; 3]),
        crop: Some(0.8),
        ..Options::default()
    };
    let imported = load(folder.path(), &stated).unwrap();
    assert_eq!(imported.card.model.num_heads, 2.into());
    assert_eq!(imported.card.preprocessing.mean, [0.1, 0.2, 0.3]);
    assert_eq!(imported.card.preprocessing.resize, vitrine_datasets::ResizeRule::ShorterSide { crop: 0.8 });
    assert!(!imported.account.warnings.iter().any(|line| line.contains("heads")));
    // What a file says is not overruled.
    let folder = Folder::new(&stored("timm_vit"), Some(&timm_folder("vit_base_patch16_224")));
    for (options, part) in [
        (Options { heads: Some(vec![4]), ..Options::default() }, "--heads 4: the configuration states 3"),
        (Options { mean: Some(vec![0.1; 3]), ..Options::default() }, "--mean"),
        (Options { std: Some(vec![0.1; 3]), ..Options::default() }, "--std"),
        (Options { crop: Some(0.8), ..Options::default() }, "--crop 0.8: the configuration states 0.9"),
    ] {
        let error = load(folder.path(), &options).err().unwrap();
        assert!(error.contains(part), "{error}");
    }
}

/// The same file for tokens of width 64: every 48 becomes 64, every 144 and 192 as many times that.
fn widened(file: File) -> File {
    file.into_iter()
        .map(|(name, tensor)| {
            let wide = |side: usize| if side.is_multiple_of(48) { side / 48 * 64 } else { side };
            let shape: Vec<usize> = tensor.shape.iter().copied().map(wide).collect();
            let count: usize = shape.iter().product();
            let bytes = (0..count).flat_map(|place| (place as f32 * 1e-3).sin().to_le_bytes()).collect();
            (name, Stored { shape, bytes, ..tensor })
        })
        .collect()
}

#[test]
fn numbers_that_are_not_finite_are_refused_by_name_at_import_and_when_a_model_is_read() {
    let mut file = stored("timm_vit");
    file.get_mut("blocks.1.mlp.fc1.weight").unwrap().bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let error = Folder::new(&file, Some(&config("timm_vit"))).load().err().unwrap();
    assert!(error.contains("blocks.1.mlp.fc1.weight") && error.contains("finite"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.safetensors");
    import_command(&fixture("timm_vit").join("weights.safetensors"), &model).assert().success();
    let mut bytes = std::fs::read(&model).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    std::fs::write(&model, bytes).unwrap();
    let error = format!("{:#}", vitrine::model_file::read(&model).err().unwrap());
    assert!(error.contains("inf") && error.contains("model.safetensors: "), "{error}");
}

fn import_command(weights: &Path, output: &Path) -> Command {
    let mut command = Command::cargo_bin("vitrine").unwrap();
    command.env("NO_COLOR", "1").arg("import").arg(weights).arg("--output").arg(output);
    command
}

#[test]
fn prefixes_common_to_all_keys_and_a_byte_order_mark_are_taken_off() {
    for prefix in ["module.", "vit.", "encoder.", "timm_model.", "model.", "backbone.", "module.vit."] {
        let file: File = stored("timm_vit")
            .into_iter()
            .map(|(name, tensor)| (format!("{prefix}{name}"), tensor))
            .collect();
        Folder::new(&file, Some(&config("timm_vit")))
            .load()
            .unwrap_or_else(|error| panic!("{prefix}: {error}"));
    }
    let folder = Folder::new(&stored("timm_vit"), Some(&config("timm_vit")));
    let names = folder.path().join("names.txt");
    let lines: Vec<String> = (0..10).map(|class| format!("thing {class}")).collect();
    std::fs::write(&names, format!("\u{feff}{}\r\n", lines.join("\r\n"))).unwrap();
    let options = Options { classes: Some(names), ..Options::default() };
    assert_eq!(load(folder.path(), &options).unwrap().card.classes, lines);
}

#[test]
fn what_is_no_such_model_is_told_by_its_part_in_few_words() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    for (content, part) in [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        ("\n<!DOCTYPE html><html><body>404</body></html>", "HTML page"),
    ] {
        std::fs::write(&path, content).unwrap();
        let error = load(&path, &Options::default()).err().unwrap();
        assert!(error.contains(part) && error.contains("model.safetensors"), "{error}");
    }
    let with = |name: &str| {
        let mut file = stored("timm_vit");
        file.insert(name.to_owned(), file["norm.bias"].clone());
        Folder::new(&file, Some(&config("timm_vit"))).load().err().unwrap()
    };
    for (name, part) in [
        ("blocks.0.attn.relative_position_bias_table", "BEiT"),
        ("rope.freqs", "rotary positions"),
        ("neck.convs.0.weight", "DPT"),
        ("patch_embed.backbone.stem.conv.weight", "hybrid stem"),
    ] {
        assert!(with(name).contains(part), "{name}");
    }
    // Keys that are nothing known: some of them, and how many more.
    let mut file = stored("timm_vit");
    for number in 0..400 {
        file.insert(format!("surplus.{number}"), file["norm.bias"].clone());
    }
    let error = Folder::new(&file, Some(&config("timm_vit"))).load().err().unwrap();
    assert!(error.contains("400 unexpected") && error.contains("more") && error.len() < 500, "{error}");
}

#[test]
fn a_negative_bit_is_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.pth");
    // The end of `_rebuild_tensor_v2(..., {"neg": True})` in a pickle of protocol 2.
    std::fs::write(&path, b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01}q\x02X\x03\x00\x00\x00negq\x03\x88ss.")
        .unwrap();
    let error = load(&path, &Options::default()).err().unwrap();
    assert!(error.contains("negative bit") && error.contains("resolve_neg"), "{error}");
}

#[test]
fn logits_of_the_library_prove_a_model_or_keep_it_from_being_written() {
    let folder = tempfile::tempdir().unwrap();
    let weights = fixture("timm_vit").join("weights.safetensors");
    let image = folder.path().join("image.png");
    let pixels: Vec<u8> = (0..40 * 30 * 3).map(|value| (value * 7 % 256) as u8).collect();
    image::save_buffer(&image, &pixels, 40, 30, image::ColorType::Rgb8).unwrap();
    let model = folder.path().join("model.safetensors");
    import_command(&weights, &model).assert().success();
    let classifier = vitrine::Classifier::load(&model).unwrap();
    let mut logits = classifier.classify(&[vitrine_datasets::ImageSource::File(image)]).remove(0).unwrap();
    std::fs::remove_file(&model).unwrap();
    let expected = folder.path().join("logits.json");
    let verify = |content: Value, more: &[&str]| {
        std::fs::write(&expected, content.to_string()).unwrap();
        let output =
            import_command(&weights, &model).arg("--verify").arg(&expected).args(more).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let (status, text) = verify(json!({ "image": "image.png", "logits": logits }), &[]);
    assert!(status == Some(0) && text.contains("image.png: equal") && model.is_file(), "{text}");
    std::fs::remove_file(&model).unwrap();
    logits[3] += 0.5;
    let one = json!({ "image": "image.png", "logits": logits });
    let (status, text) = verify(json!([one]), &[]);
    assert!(status == Some(1) && text.contains("DIFFERENT, largest difference 5.0e-1"), "{text}");
    assert!(!model.exists() && text.contains("not written"), "{text}");
    assert_eq!(verify(json!([one]), &["--tolerance", "1000"]).0, Some(0));
    assert_eq!(verify(json!([one]), &["--tolerance", "-1"]).0, Some(2));
    for (content, part) in [
        (json!([]), "no images"),
        (json!([{ "image": "image.png", "logits": [1.0] }]), "1 logits"),
        (json!([{ "image": "none.png", "logits": logits }]), "none.png"),
        (json!({ "image": 3 }), "it must be"),
    ] {
        let (status, text) = verify(content, &[]);
        assert!(status == Some(1) && text.contains(part), "{part}: {text}");
    }
}
