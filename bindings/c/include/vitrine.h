/* The classifier of vitrine for C and everything that can call it.
 *
 * Link with the shared library vitrine_c, from the root of the repository:
 *     cc program.c -I bindings/c/include -L target/release -lvitrine_c
 *
 * A classifier may be used by several threads at once. Strings are UTF-8 and end with a zero byte. No function keeps a pointer
 * that it was given. A function that fails leaves a message, which vitrine_last_error returns to the same thread. */

#ifndef VITRINE_H
#define VITRINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A loaded model. */
typedef struct vitrine_classifier vitrine_classifier;

/* An image: a file, an encoded file in memory, or pixels.
 *
 * - path, if it is not NULL: the name of an image file; the rest is not read
 * - else data and size: the bytes of an image file, if width is 0; or else height * width * channels bytes, rows from top to bottom
 *   and channels (1: gray, 3: red, green, blue) next to each other */
typedef struct vitrine_image {
    const char *path;
    const uint8_t *data;
    size_t size;
    uint32_t width;
    uint32_t height;
    uint8_t channels;
} vitrine_image;

/* What a model is asked for, one row for each image. */
typedef enum vitrine_output {
    VITRINE_PROBABILITIES = 0, /* of each class, as `vitrine classify` prints them: vitrine_num_classes numbers */
    VITRINE_LOGITS = 1,        /* of each class: vitrine_num_classes numbers */
    VITRINE_EMBEDDING = 2      /* what the head classifies: vitrine_embedding_dim numbers */
} vitrine_output;

/* The version, such as "0.1.0". */
const char *vitrine_version(void);

/* The message of the last failure on this thread, or "" if there was none. It is valid until the thread calls another function of
 * this library. */
const char *vitrine_last_error(void);

/* Lets the process compute with this many threads; 0: as the command line does, RAYON_NUM_THREADS or one for each physical core that
 * the process may use. Call it once, before the first model is loaded; without it, there is a thread for each logical core, which is
 * slower where two share a core. Returns the number of threads, or 0 on failure. A process that has computed must not fork: the child
 * has no threads. */
size_t vitrine_set_threads(size_t count);

/* Loads what `vitrine classify MODEL` takes: a model file, a run folder, weights of another library, "hf:OWNER/NAME", or the name
 * of a published backbone. device is a name as for `--device`, or NULL for a GPU that works if the library was built for one (cargo feature
 * wgpu, vulkan, metal, cuda, or rocm), or else the CPU. Nothing is downloaded if offline is not 0. Returns NULL on failure. */
vitrine_classifier *vitrine_open(const char *model, const char *device, int offline);

/* Frees a classifier. NULL is allowed. */
void vitrine_close(vitrine_classifier *classifier);

/* The number of classes; 0 for a model without a classifier, which has embeddings only. */
size_t vitrine_num_classes(const vitrine_classifier *classifier);

/* The name of a class, or NULL if there is none of this index. It lives as long as the classifier. */
const char *vitrine_class_name(const vitrine_classifier *classifier, size_t index);

/* Whether images may have several labels each, so that the probabilities of the classes do not sum to 1. */
int vitrine_is_multi_label(const vitrine_classifier *classifier);

/* The length of an embedding. */
size_t vitrine_embedding_dim(const vitrine_classifier *classifier);

/* Asks the model about count images, which are decoded in parallel and computed in batches of 16.
 *
 * values receives one row for each image, in their order, of the length that vitrine_output states; capacity is the number of
 * floats that it has room for. If status is not NULL, it receives 0 for each image that was answered and 1 for each that was not,
 * because it could not be read or the answer is not finite; its row is left as it was. Returns the number of images without an answer
 * (the message is about the first one), or -1 if the call was wrong or failed as a whole: values and status then hold nothing. */
int64_t vitrine_ask(const vitrine_classifier *classifier, vitrine_output output, const vitrine_image *images, size_t count,
                    float *values, size_t capacity, uint8_t *status);

#ifdef __cplusplus
}
#endif

#endif
