//! `vitrine import --verify`.

use serde_json::{Value, json};
use vitrine::Classifier;
use vitrine::export::{Library, export};
use vitrine::model_file::{self, ModelCard};
use vitrine::predict::Views;
use vitrine::weights_file::Precision;
use vitrine_datasets::ImageSource;

use super::{fixture, import_command};

#[test]
fn a_model_whose_logits_differ_from_the_expected_ones_is_not_written() {
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

#[test]
fn weights_are_compared_as_they_are_and_as_they_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let pixels: Vec<u8> = (0..40 * 30 * 3).map(|value| (value * 7 % 256) as u8).collect();
    image::save_buffer(path("image.png"), &pixels, 40, 30, image::ColorType::Rgb8).unwrap();
    let weights = fixture("timm_vit").join("weights.safetensors");
    let expect = |name: &str, logits: &[f32]| {
        let content = json!({ "image": "image.png", "logits": logits });
        std::fs::write(path(&format!("{name}.json")), content.to_string()).unwrap();
    };
    let formats = ["f32", "f16", "bf16"];
    for dtype in formats {
        import_command(&weights, &path(dtype)).args(["--dtype", dtype]).assert().success();
        let classifier = Classifier::load(&path(dtype)).unwrap();
        let mut logits = classifier.classify(&[ImageSource::File(path("image.png"))]).remove(0).unwrap();
        expect(dtype, &logits);
        if dtype == "f32" {
            logits.iter_mut().for_each(|logit| *logit *= 1.05);
            expect("wrong", &logits);
        }
    }
    let verify = |dtype: &str, logits: &str, more: &[&str]| {
        let _ = std::fs::remove_file(path("model.safetensors"));
        let output = import_command(&weights, &path("model.safetensors"))
            .args(["--dtype", dtype, "--verify"])
            .arg(path(&format!("{logits}.json")))
            .args(more)
            .output()
            .unwrap();
        assert_eq!(output.status.success(), path("model.safetensors").is_file());
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    for dtype in formats {
        let (agrees, text) = verify(dtype, "f32", &[]);
        assert!(agrees && text.contains("image.png: equal, "), "{dtype}: {text}");
        let rounded = text.lines().find(|line| line.contains(&format!("image.png: equal in {dtype}, ")));
        let off = rounded.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
        assert_eq!(off.is_some_and(|off| off > 1e-5), dtype != "f32", "{text}");
        // What is off by 5 % before it is rounded is a mistake, however far the rounded weights may be off.
        let (agrees, text) = verify(dtype, "wrong", &[]);
        assert!(!agrees && text.contains("image.png: DIFFERENT, "), "{dtype}: {text}");
        assert!(verify(dtype, "wrong", &["--tolerance", "0.2"]).0, "{dtype}");
        for logits in formats {
            let (agrees, text) = verify(dtype, logits, &["--tolerance", "1e-5"]);
            assert_eq!(agrees, logits == "f32", "{dtype} {logits}: {text}");
        }
    }
}

#[test]
fn logits_are_those_of_the_image_alone_whatever_classify_adds() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let pixels: Vec<u8> = (0..40 * 30 * 3).map(|value| (value * 7 % 256) as u8).collect();
    image::save_buffer(path("image.png"), &pixels, 40, 30, image::ColorType::Rgb8).unwrap();
    let weights = fixture("timm_vit").join("weights.safetensors");
    import_command(&weights, &path("model.safetensors")).assert().success();
    // An exported file remembers that `classify` asks about mirror images and shifts, too.
    let (card, model) =
        model_file::load(&path("model.safetensors"), &burn::tensor::Device::default()).unwrap();
    let card = ModelCard { mirror_views: true, shifted_views: true, ..card };
    export(&card, &model, Library::Timm, &path("timm.safetensors"), Precision::F32).unwrap();
    let logits = |model: &str, views: Views| -> Vec<f32> {
        let classifier = Classifier::load(&path(model)).unwrap().with_views(views).unwrap();
        classifier.classify(&[ImageSource::File(path("image.png"))]).remove(0).unwrap()
    };
    let alone = logits("model.safetensors", Views::One);
    let content = json!({ "image": "image.png", "logits": alone });
    std::fs::write(path("logits.json"), content.to_string()).unwrap();
    import_command(&path("timm.safetensors"), &path("back.safetensors"))
        .arg("--verify")
        .arg(path("logits.json"))
        .assert()
        .success();
    let back = model_file::read_card(&path("back.safetensors")).unwrap();
    assert!(back.mirror_views && back.shifted_views);
    assert_ne!(alone, logits("back.safetensors", Views::Mirrored));
}
