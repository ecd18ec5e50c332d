/* An NVTX injection library that records ranges: one JSON object a line in the file named by $NVTX_RECORD_FILE.
 *
 * NVTX loads the library named by $NVTX_INJECTION64_PATH at its first call and asks it to fill in tables of callbacks,
 * which is how Nsight Systems attaches too. So what is recorded here is what a profiler would be told.
 *
 * Build:  gcc -shared -fPIC -O1 nvtx_record.c -o libnvtx_record.so      (no CUDA headers: the ABI is declared below)
 *
 * Source of the ABI: NVTX 3, nvtxDetail/nvtxTypes.h and nvToolsExt.h (Apache-2.0 with LLVM exception).
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void (*callback)(void);
typedef const void *(*get_export_table)(uint32_t id);

enum { EXPORT_CALLBACKS = 1 };                       /* NVTX_ETID_CALLBACKS */
enum { MODULE_CORE2 = 5 };                           /* calls with a domain */
enum { RANGE_PUSH = 4, RANGE_POP = 5, NAME_CATEGORY = 8, REGISTER_STRING = 10, DOMAIN_CREATE = 12 };
enum { MESSAGE_ASCII = 1, MESSAGE_REGISTERED = 3 };

typedef struct {
    size_t struct_size;
    int (*module_function_table)(int module, callback ***table, unsigned *size);
} callback_tables;

typedef struct {                                     /* nvtxEventAttributes_t, version 2 or later */
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const void *message;
} attributes;

typedef struct {                                     /* what this library hands out for domains and strings */
    char *text;
} name;

static FILE *out;
static __thread int depth;

static void write_text(const char *text) {
    for (; text && *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', out);
        if ((unsigned char)*text >= 32) fputc(*text, out);
    }
}

static void record(const char *event, const name *domain, const char *message, uint32_t category, int at_depth) {
    if (!out) return;
    flockfile(out);
    fprintf(out, "{\"pid\":%d,\"event\":\"%s\",\"depth\":%d,\"category\":%u,\"domain\":\"", (int)getpid(), event, at_depth,
            category);
    write_text(domain ? domain->text : "");
    fputs("\",\"message\":\"", out);
    write_text(message);
    fputs("\"}\n", out);
    fflush(out);
    funlockfile(out);
}

static const char *message_of(const attributes *event) {
    if (!event || !event->message) return "";
    if (event->message_type == MESSAGE_ASCII) return event->message;
    if (event->message_type == MESSAGE_REGISTERED) return ((const name *)event->message)->text;
    return "(wide)";
}

static int range_push(void *domain, const attributes *event) {
    record("push", domain, message_of(event), event ? event->category : 0, depth);
    return depth++;
}

static int range_pop(void *domain) {
    if (depth == 0) {
        record("pop-without-push", domain, "", 0, 0);
        return -1;
    }
    record("pop", domain, "", 0, --depth);
    return depth;
}

static void name_category(void *domain, uint32_t category, const char *text) {
    record("category", domain, text, category, depth);
}

static void *make_name(const char *text) {
    name *made = malloc(sizeof *made);
    made->text = strdup(text ? text : "");
    return made;
}

static void *register_string(void *domain, const char *text) {
    (void)domain;
    return make_name(text);
}

static void *domain_create(const char *text) { return make_name(text); }

static void set(const callback_tables *tables, unsigned id, void *function) {
    callback **table = NULL;
    unsigned size = 0;
    if (tables->module_function_table(MODULE_CORE2, &table, &size) && id < size && table[id])
        *table[id] = (callback)function;
}

/* The entry point that NVTX looks up. Returns 1 when attached. */
int InitializeInjectionNvtx2(get_export_table get) {
    const callback_tables *tables = get(EXPORT_CALLBACKS);
    const char *path = getenv("NVTX_RECORD_FILE");
    if (!tables || tables->struct_size < sizeof *tables || !path) return 0;
    if (!out) out = fopen(path, "a");
    if (!out) return 0;
    set(tables, RANGE_PUSH, range_push);
    set(tables, RANGE_POP, range_pop);
    set(tables, NAME_CATEGORY, name_category);
    set(tables, REGISTER_STRING, register_string);
    set(tables, DOMAIN_CREATE, domain_create);
    return 1;
}
