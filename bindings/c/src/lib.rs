//! The functions that `include/vitrine.h` declares and describes.
//!
//! A panic never leaves a function: it becomes a failure with a message.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::slice;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use vitrine::predict::probabilities;
use vitrine::{Classifier, LoadOptions, threads};
use vitrine_datasets::{Image, ImageSource};

#[cfg(all(feature = "mimalloc", not(target_env = "msvc")))]
#[global_allocator]
static ALLOCATOR: vitrine::allocator::MiMalloc = vitrine::allocator::MiMalloc;

thread_local! {
    /// The message of the last failure.
    static LAST: RefCell<CString> = RefCell::default();
}

/// A loaded model, with its class names as C has them.
#[allow(non_camel_case_types)] // the name in C
pub struct vitrine_classifier {
    classifier: Classifier,
    names: Vec<CString>,
}

/// An image, as the header describes it.
#[allow(non_camel_case_types)] // the name in C
#[repr(C)]
pub struct vitrine_image {
    path: *const c_char,
    data: *const u8,
    size: usize,
    width: u32,
    height: u32,
    channels: u8,
}

/// Text without the zero bytes that would end it in C.
fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

/// The result of `work`, or `failure` and a message for [`vitrine_last_error`].
fn guarded<T>(failure: T, work: impl FnOnce() -> Result<T>) -> T {
    let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(anyhow::anyhow!("a defect of vitrine, please report it: {text}"))
    });
    done.unwrap_or_else(|error| {
        LAST.with_borrow_mut(|last| *last = c_text(&format!("{error:#}")));
        failure
    })
}

/// The text behind a pointer that may be null.
///
/// # Safety
/// It is null, or points to a string that ends with a zero byte.
unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<Option<&'a str>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: as for this function.
    let text = unsafe { CStr::from_ptr(pointer) };
    Ok(Some(text.to_str().with_context(|| format!("{what} is not UTF-8"))?))
}

/// The version.
#[unsafe(no_mangle)]
pub extern "C" fn vitrine_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// The message of the last failure on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn vitrine_last_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// The number of threads that compute.
#[unsafe(no_mangle)]
pub extern "C" fn vitrine_set_threads(count: usize) -> usize {
    guarded(0, || threads::set((count > 0).then_some(count)))
}

/// Loads a model.
///
/// # Safety
/// `model` and `device` are null, or point to strings that end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vitrine_open(
    model: *const c_char,
    device: *const c_char,
    offline: c_int,
) -> *mut vitrine_classifier {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: as for this function.
        let (model, device) = unsafe { (text(model, "model")?, text(device, "device")?) };
        let model = model.context("model is NULL")?;
        let options = LoadOptions { device: device.map(str::to_owned), offline: offline != 0 };
        let classifier = vitrine::load(model, &options)?;
        let names = classifier.card().classes.iter().map(|name| c_text(name)).collect();
        Ok(Box::into_raw(Box::new(vitrine_classifier { classifier, names })))
    })
}

/// Frees a classifier.
///
/// # Safety
/// `classifier` is null, or was returned by [`vitrine_open`] and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vitrine_close(classifier: *mut vitrine_classifier) {
    guarded((), || {
        if !classifier.is_null() {
            // SAFETY: `vitrine_open` made it of a box, and nobody uses it any more.
            drop(unsafe { Box::from_raw(classifier) });
        }
        Ok(())
    });
}

/// What a function says about a classifier, or `nothing` for null.
///
/// # Safety
/// `classifier` is null, or was returned by [`vitrine_open`].
unsafe fn about<T>(
    classifier: *const vitrine_classifier,
    nothing: T,
    say: impl FnOnce(&vitrine_classifier) -> T,
) -> T {
    // SAFETY: as for this function.
    unsafe { classifier.as_ref() }.map_or(nothing, say)
}

/// The number of classes.
///
/// # Safety
/// `classifier` is null, or was returned by [`vitrine_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vitrine_num_classes(classifier: *const vitrine_classifier) -> usize {
    // SAFETY: as for this function.
    unsafe { about(classifier, 0, |opened| opened.names.len()) }
}

/// The name of a class.
///
/// # Safety
/// `classifier` is null, or was returned by [`vitrine_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vitrine_class_name(
    classifier: *const vitrine_classifier,
    index: usize,
) -> *const c_char {
    let null = std::ptr::null();
    // SAFETY: as for this function.
    unsafe { about(classifier, null, |opened| opened.names.get(index).map_or(null, |name| name.as_ptr())) }
}

/// Whether images may have several labels each.
///
/// # Safety
/// `classifier` is null, or was returned by [`vitrine_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vitrine_is_multi_label(classifier: *const vitrine_classifier) -> c_int {
    // SAFETY: as for this function.
    unsafe { about(classifier, 0, |opened| opened.classifier.card().multi_label.into()) }
}

/// The length of an embedding.
///
/// # Safety
/// `classifier` is null, or was returned by [`vitrine_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vitrine_embedding_dim(classifier: *const vitrine_classifier) -> usize {
    // SAFETY: as for this function.
    unsafe { about(classifier, 0, |opened| opened.classifier.card().model.embedding_dim()) }
}

/// Asks the model about images.
///
/// # Safety
/// `classifier` is null, or was returned by [`vitrine_open`]. `images` points to `count` images whose pointers are as the header
/// says, `values` to `capacity` numbers, and `status` is null or points to `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vitrine_ask(
    classifier: *const vitrine_classifier,
    output: c_int,
    images: *const vitrine_image,
    count: usize,
    values: *mut f32,
    capacity: usize,
    status: *mut u8,
) -> i64 {
    guarded(-1, || {
        // SAFETY: as for this function.
        let opened = unsafe { classifier.as_ref() }.context("classifier is NULL")?;
        let asked = ask(&opened.classifier, output)?;
        let width = asked.width;
        if count == 0 {
            return Ok(0);
        }
        ensure!(!images.is_null() && !values.is_null(), "images or values is NULL");
        let needed = count.checked_mul(width).filter(|&needed| needed <= capacity);
        ensure!(
            needed.is_some(),
            "values has room for {capacity} numbers: {count} rows of {width} are needed"
        );
        ensure!(is_possible::<vitrine_image>(count), "count is {count}: no array is so long");
        // SAFETY: as for this function.
        let images = unsafe { slice::from_raw_parts(images, count) };
        let copied = images.iter().enumerate().map(|(index, image)| {
            // SAFETY: as for this function.
            unsafe { source(index, image) }
        });
        let sources = copied.collect::<Result<Vec<_>>>()?;
        asked.write(&sources, |index, row| {
            // SAFETY: `values` has room for `count` rows, and `status`, if it is not null, for as many bytes. They may not be
            // initialized, so that no reference to them is made.
            unsafe {
                if !status.is_null() {
                    status.add(index).write(row.is_none().into());
                }
                if let Some(row) = row {
                    values.add(index * width).copy_from_nonoverlapping(row.as_ptr(), width);
                }
            }
        })
    })
}

/// Whether an array of so many values can exist.
fn is_possible<T>(count: usize) -> bool {
    count.checked_mul(size_of::<T>()).is_some_and(|bytes| isize::try_from(bytes).is_ok())
}

/// What a model is asked for, and the length of a row.
struct Asked<'a> {
    classifier: &'a Classifier,
    output: c_int,
    width: usize,
}

/// The numbers of `vitrine_output`.
const PROBABILITIES: c_int = 0;
const LOGITS: c_int = 1;
const EMBEDDING: c_int = 2;

fn ask(classifier: &Classifier, output: c_int) -> Result<Asked<'_>> {
    let card = classifier.card();
    let width = match output {
        PROBABILITIES | LOGITS => {
            card.require_classifier("the model")?;
            card.classes.len()
        }
        EMBEDDING => card.model.embedding_dim(),
        _ => bail!("output is {output}: no such value of vitrine_output"),
    };
    Ok(Asked { classifier, output, width })
}

impl Asked<'_> {
    /// Passes the row of each image to `write`, or `None` for one without an answer. Returns the number of these, after a message
    /// about the first one.
    fn write(&self, sources: &[ImageSource], write: impl Fn(usize, Option<&[f32]>)) -> Result<i64> {
        let answers = match self.output {
            EMBEDDING => self.classifier.embed(sources),
            _ => self.classifier.classify(sources),
        };
        let mut failed = 0;
        for (index, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(logits) if self.output == PROBABILITIES => {
                    let found = probabilities(self.classifier.card(), &logits);
                    let row: Vec<f32> = found.into_iter().map(|probability| probability as f32).collect();
                    write(index, Some(&row));
                }
                Ok(row) => write(index, Some(&row)),
                Err(error) => {
                    write(index, None);
                    if failed == 0 {
                        LAST.with_borrow_mut(|last| *last = c_text(&format!("image {index}: {error:#}")));
                    }
                    failed += 1;
                }
            }
        }
        Ok(failed)
    }
}

/// A copy of an image.
///
/// # Safety
/// The image's pointers are as the header says.
unsafe fn source(index: usize, image: &vitrine_image) -> Result<ImageSource> {
    if !image.path.is_null() {
        // SAFETY: as for this function.
        return Ok(ImageSource::File(path_of(unsafe { CStr::from_ptr(image.path) })?));
    }
    let name = format!("image {index}");
    ensure!(!image.data.is_null(), "{name}: path and data are NULL");
    let &vitrine_image { size, width, height, channels, .. } = image;
    ensure!(is_possible::<u8>(size), "{name}: size is {size}: no array is so long");
    if width > 0 {
        let needed = u128::from(width) * u128::from(height) * u128::from(channels);
        ensure!(
            size as u128 == needed,
            "{name}: size is {size}, and {width} by {height} pixels of {channels} channels are {needed} bytes"
        );
    }
    // SAFETY: as for this function.
    let bytes = unsafe { slice::from_raw_parts(image.data, size) };
    if width == 0 {
        return Ok(ImageSource::Encoded { name, bytes: bytes.into() });
    }
    let image = Arc::new(Image { width, height, channels, pixels: bytes.to_vec() });
    Ok(ImageSource::Pixels { name, image })
}

/// A path as the system has it: any bytes on Unix, UTF-8 elsewhere.
#[cfg(unix)]
fn path_of(path: &CStr) -> Result<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    Ok(std::ffi::OsStr::from_bytes(path.to_bytes()).into())
}

/// A path as the system has it: any bytes on Unix, UTF-8 elsewhere.
#[cfg(not(unix))]
fn path_of(path: &CStr) -> Result<PathBuf> {
    Ok(path.to_str().context("path is not UTF-8")?.into())
}
