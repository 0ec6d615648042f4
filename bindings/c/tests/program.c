/* Answers what tests/program.rs asks: program MODEL IMAGE... prints the version, the classes, and for each image the logits, the
 * probabilities, and the embedding, in hexadecimal; then checks failures, and loads the model a thousand times. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <sys/resource.h>

#include "vitrine.h"

#define CHECK(condition)                                                                                        \
    do {                                                                                                        \
        if (!(condition)) {                                                                                     \
            fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #condition, vitrine_last_error());       \
            exit(1);                                                                                            \
        }                                                                                                       \
    } while (0)

static void print_rows(const char *name, const float *values, size_t rows, size_t width) {
    for (size_t row = 0; row < rows; row++) {
        printf("%s", name);
        for (size_t column = 0; column < width; column++) printf(" %a", values[row * width + column]);
        printf("\n");
    }
}

static uint8_t *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(*size);
    CHECK(bytes != NULL && fread(bytes, 1, *size, file) == *size);
    fclose(file);
    return bytes;
}

static void check_failures(const vitrine_classifier *classifier, const char *good) {
    float values[32];
    uint8_t status[3] = {9, 9, 9};
    const uint8_t garbage[] = "no image";
    const uint8_t pixels[2 * 2 * 3] = {0};
    vitrine_image images[3] = {
        {.path = "/no/such/image.png"},
        {.data = garbage, .size = sizeof garbage},
        {.path = good},
    };
    CHECK(vitrine_ask(classifier, VITRINE_LOGITS, images, 3, values, 32, status) == 2);
    CHECK(status[0] == 1 && status[1] == 1 && status[2] == 0);
    CHECK(strstr(vitrine_last_error(), "/no/such/image.png") != NULL);
    vitrine_image cut = {.data = pixels, .size = sizeof pixels - 1, .width = 2, .height = 2, .channels = 3};
    CHECK(vitrine_ask(classifier, VITRINE_LOGITS, &cut, 1, values, 32, NULL) == -1);
    CHECK(strstr(vitrine_last_error(), "size is 11") != NULL && strstr(vitrine_last_error(), "12 bytes") != NULL);
    vitrine_image huge = {.data = pixels, .size = (size_t)-1};
    CHECK(vitrine_ask(classifier, VITRINE_LOGITS, &huge, 1, values, 32, NULL) == -1);
    CHECK(vitrine_ask(classifier, VITRINE_LOGITS, images, (size_t)-1 / 7, values, (size_t)-1, NULL) == -1);
    vitrine_image four = {.data = pixels, .size = sizeof pixels, .width = 3, .height = 1, .channels = 4};
    CHECK(vitrine_ask(classifier, VITRINE_LOGITS, &four, 1, values, 32, NULL) == 1);
    CHECK(strstr(vitrine_last_error(), "image 0") != NULL && strstr(vitrine_last_error(), "4 channels") != NULL);
    vitrine_image nothing = {0};
    CHECK(vitrine_ask(classifier, VITRINE_LOGITS, &nothing, 1, values, 32, NULL) == -1);
    CHECK(vitrine_ask(classifier, VITRINE_LOGITS, images, 3, values, 20, NULL) == -1);
    CHECK(strstr(vitrine_last_error(), "room for 20") != NULL);
    CHECK(vitrine_ask(classifier, (vitrine_output)5, images, 3, values, 32, NULL) == -1);
    CHECK(vitrine_ask(NULL, VITRINE_LOGITS, images, 3, values, 32, NULL) == -1);
    CHECK(vitrine_ask(classifier, VITRINE_LOGITS, NULL, 0, NULL, 0, NULL) == 0);
    CHECK(vitrine_open("/no/such/model", NULL, 1) == NULL);
    CHECK(strstr(vitrine_last_error(), "/no/such/model") != NULL);
    CHECK(vitrine_open(NULL, NULL, 1) == NULL);
    CHECK(vitrine_open("/no/such/model", "abacus", 1) == NULL && strstr(vitrine_last_error(), "abacus") != NULL);
    CHECK(vitrine_num_classes(NULL) == 0 && vitrine_class_name(classifier, 1000) == NULL);
    vitrine_close(NULL);
}

/* Pixels have the answers of a file with the same pixels (PPM and PGM, which are pixels with a header). */
static void check_pixels(const vitrine_classifier *classifier) {
    enum { WIDTH = 40, HEIGHT = 30 };
    for (uint8_t channels = 1; channels <= 3; channels += 2) {
        char file[64 + WIDTH * HEIGHT * 3];
        int start = sprintf(file, "P%d\n%d %d\n255\n", channels == 1 ? 5 : 6, WIDTH, HEIGHT);
        size_t size = (size_t)WIDTH * HEIGHT * channels;
        for (size_t index = 0; index < size; index++) file[(size_t)start + index] = (char)(index * 7 + index / 50);
        const uint8_t *bytes = (const uint8_t *)file;
        vitrine_image images[2] = {
            {.data = bytes, .size = (size_t)start + size},
            {.data = bytes + start, .size = size, .width = WIDTH, .height = HEIGHT, .channels = channels},
        };
        float values[32];
        size_t classes = vitrine_num_classes(classifier);
        CHECK(vitrine_ask(classifier, VITRINE_LOGITS, images, 2, values, 32, NULL) == 0);
        CHECK(memcmp(values, values + classes, classes * sizeof *values) == 0);
    }
}

struct shared {
    const vitrine_classifier *classifier;
    const vitrine_image *images;
    const float *expected;
    size_t count, classes;
};

static void *ask_again(void *argument) {
    const struct shared *shared = argument;
    size_t bytes = shared->count * shared->classes * sizeof(float);
    float *values = malloc(bytes);
    CHECK(values != NULL);
    CHECK(vitrine_ask(shared->classifier, VITRINE_LOGITS, shared->images, shared->count, values, shared->count * shared->classes, NULL) == 0);
    CHECK(memcmp(values, shared->expected, bytes) == 0);
    free(values);
    return NULL;
}

/* Two threads share a classifier. */
static void check_threads(struct shared shared) {
    pthread_t threads[2];
    for (int index = 0; index < 2; index++) CHECK(pthread_create(&threads[index], NULL, ask_again, &shared) == 0);
    for (int index = 0; index < 2; index++) CHECK(pthread_join(threads[index], NULL) == 0);
}

static long peak_kilobytes(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

int main(int argc, char **argv) {
    CHECK(argc > 2);
    CHECK(vitrine_set_threads(2) == 2 && vitrine_set_threads(2) == 0);
    vitrine_classifier *classifier = vitrine_open(argv[1], NULL, 1);
    CHECK(classifier != NULL);
    printf("version %s\n", vitrine_version());
    size_t classes = vitrine_num_classes(classifier), dim = vitrine_embedding_dim(classifier), count = (size_t)argc - 2;
    for (size_t index = 0; index < classes; index++) printf("class %s\n", vitrine_class_name(classifier, index));
    CHECK(!vitrine_is_multi_label(classifier));
    vitrine_image *images = calloc(count, sizeof *images);
    float *values = calloc(count, (classes > dim ? classes : dim) * sizeof *values);
    CHECK(images != NULL && values != NULL);
    for (size_t index = 0; index < count; index++) {
        if (index % 2 == 0) {
            images[index].path = argv[index + 2];
        } else {
            images[index].data = read_file(argv[index + 2], &images[index].size);
        }
    }
    CHECK(vitrine_ask(classifier, VITRINE_LOGITS, images, count, values, count * classes, NULL) == 0);
    print_rows("logits", values, count, classes);
    check_threads((struct shared){classifier, images, values, count, classes});
    check_pixels(classifier);
    CHECK(vitrine_ask(classifier, VITRINE_EMBEDDING, images, count, values, count * dim, NULL) == 0);
    print_rows("embedding", values, count, dim);
    CHECK(vitrine_ask(classifier, VITRINE_PROBABILITIES, images, count, values, count * classes, NULL) == 0);
    for (size_t row = 0; row < count; row++) {
        float sum = 0;
        for (size_t column = 0; column < classes; column++) sum += values[row * classes + column];
        CHECK(sum > 0.9999f && sum < 1.0001f);
    }
    check_failures(classifier, argv[2]);
    vitrine_close(classifier);
    for (size_t index = 1; index < count; index += 2) free((void *)images[index].data);

    int loads = getenv("LOADS") ? atoi(getenv("LOADS")) : 1000;
    long before = 0;
    for (int number = 0; number < loads; number++) {
        if (number == loads / 10) before = peak_kilobytes();
        classifier = vitrine_open(argv[1], NULL, 1);
        CHECK(classifier != NULL);
        CHECK(vitrine_ask(classifier, VITRINE_LOGITS, images, 1, values, classes, NULL) == 0);
        vitrine_close(classifier);
    }
    /* The model has 2 MB: memory that is never freed would show. */
    CHECK(peak_kilobytes() - before < 20 * 1024);
    free(images);
    free(values);
    return 0;
}
