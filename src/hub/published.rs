//! Published backbones with a short name, such as `dinov2-small`: a choice for small data sets of photos.

use std::path::Path;

use super::SCHEME;

/// Pretrained weights in a repository on Hugging Face, with the facts by which to choose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedBackbone {
    /// The name on the command line.
    pub name: &'static str,
    /// The repository, as `OWNER/NAME`.
    pub repository: &'static str,
    /// Millions of parameters, without a head.
    pub millions: f64,
    /// Height and width of its images in pixels.
    pub image_size: usize,
    /// The license that the repository states.
    pub license: &'static str,
    /// The accuracy on ImageNet in percent.
    pub top1: f64,
    /// How it was measured.
    pub measured: Measured,
}

/// How the accuracy of a backbone was measured, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    /// With a linear head on frozen features: by the authors of DINOv2 (README of facebookresearch/dinov2).
    ProbeByDinov2,
    /// The same: by the authors of MAE (He et al. 2022, arXiv:2111.06377; FINETUNE.md of facebookresearch/mae, "paper").
    ProbeByMae,
    /// The same, with ImageNet's corrected labels ReaL: by the authors of DINOv3 (Siméoni et al. 2025, arXiv:2508.10104, table 14).
    RealProbeByDinov3,
    /// Without training on ImageNet, by the nearest of texts about its classes: by the authors of open_clip
    /// (docs/openclip_results.csv of mlfoundations/open_clip).
    ZeroShotByOpenClip,
    /// The same: by the authors of SigLIP 2 (Tschannen et al. 2025, arXiv:2502.14786; README_siglip2.md of
    /// google-research/big_vision).
    ZeroShotBySiglip2,
    /// All of the weights, after training with ImageNet's labels: by timm (results-imagenet.csv). Of weights of ImageNet-21k, those
    /// that were fine-tuned from them.
    SupervisedByTimm,
}

impl Measured {
    /// A short text for lists.
    pub fn described(self) -> &'static str {
        match self {
            Self::ProbeByDinov2 => "linear probe (README of DINOv2)",
            Self::ProbeByMae => "linear probe (He et al. 2022)",
            Self::RealProbeByDinov3 => "linear probe, ReaL labels (Siméoni et al. 2025, table 14)",
            Self::ZeroShotByOpenClip => "zero-shot (open_clip's results)",
            Self::ZeroShotBySiglip2 => "zero-shot (README of SigLIP 2)",
            Self::SupervisedByTimm => "trained with its labels (timm's results)",
        }
    }
}

/// The published backbones: the small ones, and then those of the size of ViT-B.
///
/// Parameters, image sizes, and licenses of timm's repositories are those of timm 1.0.31. OpenAI's own weights of CLIP are
/// not among them: timm's repositories state GELU for them, but they were trained with its approximation QuickGELU.
#[rustfmt::skip]
pub const BACKBONES: [PublishedBackbone; 20] = {
    use Measured::{ProbeByDinov2, ProbeByMae, RealProbeByDinov3, SupervisedByTimm, ZeroShotByOpenClip, ZeroShotBySiglip2};
    [
        backbone("vit-tiny", "timm/vit_tiny_patch16_224.augreg_in21k", (5.5, 224), "apache-2.0", (75.5, SupervisedByTimm)),
        backbone("deit-tiny", "timm/deit_tiny_patch16_224.fb_in1k", (5.5, 224), "apache-2.0", (72.2, SupervisedByTimm)),
        backbone("eva02-tiny", "timm/eva02_tiny_patch14_336.mim_in22k_ft_in1k", (5.6, 336), "mit", (80.6, SupervisedByTimm)),
        backbone("vit-small", "timm/vit_small_patch16_224.augreg_in21k", (21.7, 224), "apache-2.0", (81.4, SupervisedByTimm)),
        backbone("deit3-small", "timm/deit3_small_patch16_224.fb_in22k_ft_in1k", (21.7, 224), "apache-2.0", (83.1, SupervisedByTimm)),
        backbone("eva02-small", "timm/eva02_small_patch14_336.mim_in22k_ft_in1k", (21.7, 336), "mit", (85.7, SupervisedByTimm)),
        backbone("dinov2-small", "facebook/dinov2-small", (22.1, 224), "apache-2.0", (81.1, ProbeByDinov2)),
        backbone("dinov3-small", "timm/vit_small_patch16_dinov3.lvd1689m", (21.6, 256), "dinov3-license", (87.0, RealProbeByDinov3)),
        backbone("swin-tiny", "microsoft/swin-tiny-patch4-window7-224", (27.5, 224), "apache-2.0", (81.4, SupervisedByTimm)),
        backbone("swinv2-tiny", "timm/swinv2_tiny_window8_256.ms_in1k", (27.6, 256), "mit", (81.8, SupervisedByTimm)),
        backbone("clip-base-32", "timm/vit_base_patch32_clip_224.datacompxl", (87.5, 224), "apache-2.0", (69.2, ZeroShotByOpenClip)),
        backbone("dinov2-base", "facebook/dinov2-base", (86.6, 224), "apache-2.0", (84.5, ProbeByDinov2)),
        backbone("dinov3-base", "timm/vit_base_patch16_dinov3.lvd1689m", (85.6, 256), "dinov3-license", (89.3, RealProbeByDinov3)),
        backbone("mae-base", "facebook/vit-mae-base", (85.8, 224), "apache-2.0", (68.0, ProbeByMae)),
        backbone("vit-base", "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k", (85.8, 224), "apache-2.0", (85.1, SupervisedByTimm)),
        backbone("beitv2-base", "timm/beitv2_base_patch16_224.in1k_ft_in22k_in1k", (85.8, 224), "apache-2.0", (86.5, SupervisedByTimm)),
        backbone("clip-base", "timm/vit_base_patch16_clip_224.datacompxl", (85.8, 224), "apache-2.0", (73.5, ZeroShotByOpenClip)),
        backbone("siglip-base", "timm/vit_base_patch16_siglip_224.webli", (92.9, 224), "apache-2.0", (76.0, ZeroShotByOpenClip)),
        backbone("siglip2-base", "timm/vit_base_patch16_siglip_224.v2_webli", (92.9, 224), "apache-2.0", (78.2, ZeroShotBySiglip2)),
        backbone("eva02-base", "timm/eva02_base_patch14_448.mim_in22k_ft_in22k_in1k", (86.3, 448), "mit", (88.7, SupervisedByTimm)),
    ]
};

const fn backbone(
    name: &'static str,
    repository: &'static str,
    (millions, image_size): (f64, usize),
    license: &'static str,
    (top1, measured): (f64, Measured),
) -> PublishedBackbone {
    PublishedBackbone { name, repository, millions, image_size, license, top1, measured }
}

/// The source in full: for the name of a published backbone, the repository it stands for as `hf:OWNER/NAME`. A file or
/// folder of that name comes first.
pub(super) fn in_full(source: &str) -> String {
    let named = BACKBONES.iter().find(|backbone| backbone.name == source && !Path::new(source).exists());
    named.map_or_else(|| source.to_owned(), |backbone| format!("{SCHEME}{}", backbone.repository))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::Repository;
    use super::*;

    #[test]
    fn every_name_stands_for_one_repository() {
        let names: BTreeSet<&str> = BACKBONES.iter().map(|backbone| backbone.name).collect();
        let repositories: BTreeSet<&str> = BACKBONES.iter().map(|backbone| backbone.repository).collect();
        assert_eq!([names.len(), repositories.len()], [BACKBONES.len(); 2]);
        for backbone in BACKBONES {
            let full = in_full(backbone.name);
            let repository: Repository = full.parse().unwrap();
            assert_eq!(repository.to_string(), format!("hf:{}", backbone.repository));
            assert!(!Path::new(backbone.name).exists() && backbone.name.parse::<Repository>().is_err());
        }
        assert_eq!(["dinov2", "hf:a/b", "src"].map(in_full), ["dinov2", "hf:a/b", "src"]);
    }
}
