/* Python's face of the kernel: buffers in, buffers out, without the GIL. gpu_train_cas/codecs/kernel.py is its only user. */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernel.h"

/* ---- memory: what payloads and blocks are handed out in; given back for the next when nobody holds it ---- */
typedef struct {
    PyObject_HEAD
    uint8_t *data;
    Py_ssize_t size;
} memory_t;

static void memory_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (((memory_t *)self)->data)
        scratch_give(((memory_t *)self)->data);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static int memory_buffer(PyObject *self, Py_buffer *view, int flags)
{
    return PyBuffer_FillInfo(view, self, ((memory_t *)self)->data, ((memory_t *)self)->size, 1, flags);
}

static PyType_Slot memory_slots[] = {
    {Py_tp_doc, "Bytes that the kernel wrote, for memoryview() and whatever else takes buffers."},
    {Py_tp_dealloc, (void *)memory_dealloc},
    {Py_bf_getbuffer, (void *)memory_buffer},
    {0, NULL},
};

static PyType_Spec memory_spec = {
    "gpu_train_cas.codecs._kernel.Memory", sizeof(memory_t), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, memory_slots,
};

typedef struct {
    PyTypeObject *memory_type;
} state_t;

static memory_t *memory_new(PyObject *module, size_t size)
{
    PyTypeObject *type = ((state_t *)PyModule_GetState(module))->memory_type;
    memory_t *memory = (memory_t *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!memory)
        return NULL;
    memory->size = (Py_ssize_t)size;
    memory->data = scratch_take(size);
    if (!memory->data) {
        Py_DECREF(memory);
        return (memory_t *)PyErr_NoMemory();
    }
    return memory;
}

/* ---- arguments ---- */

/* A buffer argument that may be None. */
static bool optional_buffer(PyObject *object, Py_buffer *view)
{
    view->obj = NULL;
    view->buf = NULL;
    return object == Py_None || PyObject_GetBuffer(object, view, PyBUF_SIMPLE) == 0;
}

static void release(Py_buffer *view)
{
    if (view->obj)
        PyBuffer_Release(view);
}

static const variant_t *variant_named(const char *name)
{
    const variant_t *variant = kernel_select(name);
    if (!variant)
        PyErr_Format(PyExc_ValueError, "kernel variant %s does not run on this machine", name);
    return variant;
}

static bool lengths_match(const Py_buffer *block, const Py_buffer *other, Py_ssize_t due)
{
    if (other->buf == NULL || other->len == due)
        return true;
    PyErr_Format(PyExc_ValueError, "a buffer of %zd bytes where %zd are due for a block of %zd", other->len, due,
                 block->len);
    return false;
}

/* The buffers of a call: a block (or payload), and what it may be coded with. */
typedef struct {
    Py_buffer data, base, sibling, digest, prediction;
} buffers_t;

static void buffers_release(buffers_t *b)
{
    release(&b->prediction);
    release(&b->digest);
    release(&b->sibling);
    release(&b->base);
    PyBuffer_Release(&b->data);
}

/* Takes what may be None; `b->data` is there already. On failure everything is released. */
static bool buffers_take(buffers_t *b, PyObject *base, PyObject *sibling, PyObject *digest, Py_ssize_t due)
{
    b->base.obj = b->sibling.obj = b->digest.obj = b->prediction.obj = NULL;
    if (optional_buffer(base, &b->base) && optional_buffer(sibling, &b->sibling) &&
        optional_buffer(digest, &b->digest) && lengths_match(&b->data, &b->base, due) &&
        lengths_match(&b->data, &b->sibling, due) &&
        lengths_match(&b->data, &b->digest, DIGEST_BYTES))
        return true;
    buffers_release(b);
    return false;
}

static block_t block_of(const buffers_t *b, int element)
{
    return (block_t){.data = b->data.buf, .base = b->base.buf, .sibling = b->sibling.buf, .digest = b->digest.buf,
                     .length = (size_t)b->data.len, .element = (uint8_t)element};
}

static size_t limit_of(Py_ssize_t limit, size_t length)
{
    size_t most = kernel_limit(length);
    return limit < 0 ? 0 : (size_t)limit < most ? (size_t)limit : most;
}

/* `memory` with a payload of `size` bytes, or what stands in its place; takes the reference. */
static PyObject *payload_result(memory_t *memory, size_t size)
{
    if (size != 0 && size != NO_MEMORY) {
        memory->size = (Py_ssize_t)size;
        return (PyObject *)memory;
    }
    Py_DECREF(memory);
    return size == 0 ? Py_NewRef(Py_None) : PyErr_NoMemory();
}

/* ---- functions ---- */
/* Whether what `encode` was given goes together; sets an exception where not. */
static bool encode_valid(const block_t *b, int source, bool predicted)
{
    bool valid = b->element <= (ELEMENT_WIDTH | ELEMENT_FLOAT) && source >= 0 && source <= SOURCE_GRID &&
                 (!(source & SOURCE_BASE) || b->base) && !b->digest == !b->sibling &&
                 (b->top || b->element & ELEMENT_FLOAT || b->element == 0);
    if (predicted)
        valid = valid && b->top && b->element == PREDICTED_ELEMENT && source <= SOURCE_BASE && b->base && b->sibling;
    else
        valid = valid && !(source & SOURCE_SIBLING) == !b->sibling;
    if (source == SOURCE_GRID)
        valid = valid && b->row > 0 && b->first < b->row && b->row <= b->length / 16;
    else
        valid = valid && !b->row && !b->first;
    if (!valid)
        PyErr_SetString(PyExc_ValueError, "element, source and buffers do not go together");
    return valid;
}

static bool prediction_take(block_t *b, const Py_buffer *prediction)
{
    if (!prediction->buf)
        return true;
    b->predicted = prediction->buf;
    b->predicted_bytes = (size_t)prediction->len;
    if (prediction->len && prediction_read(prediction->buf, b->predicted_bytes, b->length / 4, &b->prediction) ==
                               b->predicted_bytes)
        return true;
    PyErr_SetString(PyExc_ValueError, "this is no prediction for such a block");
    return false;
}

static PyObject *encode(PyObject *self, PyObject *args)
{
    PyObject *base, *sibling, *digest, *prediction, *result = NULL;
    buffers_t b;
    Py_ssize_t limit;
    unsigned row, first;
    int element, tokens, source;
    const char *name;
    if (!PyArg_ParseTuple(args, "y*iiiOOOOIInz", &b.data, &element, &tokens, &source, &base, &sibling, &digest,
                          &prediction, &row, &first, &limit, &name) ||
        !buffers_take(&b, base, sibling, digest, b.data.len))
        return NULL;
    block_t block = block_of(&b, element < 0 || element > UINT8_MAX ? UINT8_MAX : element);
    block.top = tokens != 0;
    block.source = (uint8_t)source;
    block.row = row;
    block.first = first;
    const variant_t *variant = NULL;
    if (optional_buffer(prediction, &b.prediction) && encode_valid(&block, source, b.prediction.buf) &&
        prediction_take(&block, &b.prediction))
        variant = variant_named(name);
    memory_t *memory = variant ? memory_new(self, kernel_bound(block.length)) : NULL;
    if (memory) {
        size_t size, most = limit_of(limit, block.length);
        Py_BEGIN_ALLOW_THREADS
        size = variant->encode(&block, memory->data, most);
        Py_END_ALLOW_THREADS
        result = payload_result(memory, size);
    }
    buffers_release(&b);
    return result;
}

enum { PLAN_CONSTANT = 1, PLAN_REGULAR = 2, PLAN_REPEATS = 4, PLAN_DELTA = 8, PLAN_WRONG = 16 };

static int plan_bits(const plan_t *plan)
{
    return (plan->constant ? PLAN_CONSTANT : 0) | (plan->regular ? PLAN_REGULAR : 0) |
           (plan->repeats ? PLAN_REPEATS : 0) | (plan->delta ? PLAN_DELTA : 0) | (plan->wrong ? PLAN_WRONG : 0);
}

static PyObject *pack(PyObject *self, PyObject *args)
{
    PyObject *base, *sibling, *digest, *result = NULL;
    buffers_t b;
    Py_ssize_t limit;
    known_t known;
    int element, predicts, is_moment;
    const char *name;
    if (!PyArg_ParseTuple(args, "y*iOOOiIIinz", &b.data, &element, &base, &sibling, &digest, &predicts, &known.row,
                          &known.first, &is_moment, &limit, &name) ||
        !buffers_take(&b, base, sibling, digest, b.data.len))
        return NULL;
    block_t block = block_of(&b, element);
    known.predicts = (uint8_t)predicts;
    known.is_moment = is_moment != 0;
    bool valid = element >= 0 && element <= (ELEMENT_WIDTH | ELEMENT_FLOAT) && !block.digest == !block.sibling &&
                 (known.row ? known.first < known.row && known.row <= ROW_MOST : !known.first);
    if (predicts != PREDICT_NOTHING)
        valid = valid && (predicts == PREDICT_LINE || predicts == PREDICT_SQUARE) && element == PREDICTED_ELEMENT &&
                block.base && block.sibling;
    if (!valid)
        PyErr_SetString(PyExc_ValueError, "element, what is known and buffers do not go together");
    const variant_t *variant = valid ? variant_named(name) : NULL;
    memory_t *memory = variant ? memory_new(self, kernel_bound(block.length)) : NULL;
    if (memory) {
        size_t size, most = limit_of(limit, block.length);
        plan_t plan;
        Py_BEGIN_ALLOW_THREADS
        size = variant->pack(&block, &known, memory->data, most, &plan);
        Py_END_ALLOW_THREADS
        PyObject *payload = payload_result(memory, size);
        result = payload ? Py_BuildValue("(Ni)", payload, plan_bits(&plan)) : NULL;
    }
    buffers_release(&b);
    return result;
}

/* What `decode` and `prove` share: the payload in data, a block of `length` bytes to `out`, or equal to `equal`. */
static status_t payload_decode(const buffers_t *b, size_t length, const uint8_t *equal, uint8_t *out,
                               const variant_t *variant)
{
    block_t block = {.data = equal, .base = b->base.buf, .sibling = b->sibling.buf, .length = length};
    payload_t payload;
    status_t status;
    Py_BEGIN_ALLOW_THREADS
    status = payload_parse(b->data.buf, (size_t)b->data.len, length, &payload);
    status = status == KERNEL_OK ? variant->decode(&payload, &block, out) : status;
    Py_END_ALLOW_THREADS
    return status;
}

static PyObject *decode(PyObject *self, PyObject *args)
{
    PyObject *base, *sibling, *result = NULL;
    buffers_t b;
    Py_ssize_t length;
    const char *name;
    if (!PyArg_ParseTuple(args, "y*nOOz", &b.data, &length, &base, &sibling, &name) ||
        !buffers_take(&b, base, sibling, Py_None, length))
        return NULL;
    if (length < 0)
        PyErr_SetString(PyExc_ValueError, "a block of less than no bytes");
    const variant_t *variant = length < 0 ? NULL : variant_named(name);
    memory_t *memory = variant ? memory_new(self, (size_t)length) : NULL;
    if (memory) {
        status_t status = payload_decode(&b, (size_t)length, NULL, memory->data, variant);
        if (status == KERNEL_OK)
            result = Py_NewRef((PyObject *)memory);
        else
            result = status == BAD_MEMORY ? PyErr_NoMemory() : PyLong_FromLong(status);
        Py_DECREF(memory);
    }
    buffers_release(&b);
    return result;
}

static PyObject *prove(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *base, *sibling, *result = NULL;
    Py_buffer block;
    buffers_t b;
    const char *name;
    if (!PyArg_ParseTuple(args, "y*y*OOz", &b.data, &block, &base, &sibling, &name))
        return NULL;
    if (buffers_take(&b, base, sibling, Py_None, block.len)) {
        const variant_t *variant = variant_named(name);
        if (variant) {
            status_t status = payload_decode(&b, (size_t)block.len, block.buf, NULL, variant);
            result = status == BAD_MEMORY ? PyErr_NoMemory() : PyLong_FromLong(status);
        }
        buffers_release(&b);
    }
    PyBuffer_Release(&block);
    return result;
}

static bool is_plane_width(int width)
{
    if (width == 2 || width == 4 || width == 8)
        return true;
    PyErr_Format(PyExc_ValueError, "elements of %d bytes have no planes", width);
    return false;
}

static PyObject *split(PyObject *self, PyObject *args)
{
    Py_buffer block;
    int width, rotated;
    if (!PyArg_ParseTuple(args, "y*ip", &block, &width, &rotated))
        return NULL;
    memory_t *memory = NULL;
    if (is_plane_width(width)) {
        size_t count = (size_t)(block.len / width);
        memory = memory_new(self, count * (size_t)width);
        if (memory) {
            Py_BEGIN_ALLOW_THREADS
            planes_split(block.buf, count, width, rotated, memory->data);
            Py_END_ALLOW_THREADS
        }
    }
    PyBuffer_Release(&block);
    return (PyObject *)memory;
}

static PyObject *join(PyObject *self, PyObject *args)
{
    PyObject *list;
    Py_buffer tail, views[8];
    Py_ssize_t count;
    plane_t planes[8];
    int width, rotated, held = 0;
    if (!PyArg_ParseTuple(args, "O!nipy*", &PyList_Type, &list, &count, &width, &rotated, &tail))
        return NULL;
    memory_t *memory = NULL;
    bool good = is_plane_width(width);
    if (good && (PyList_Size(list) != width || count < 1 || count > PY_SSIZE_T_MAX / 16)) {
        PyErr_SetString(PyExc_ValueError, "a plane is due for each byte of an element");
        good = false;
    }
    for (; good && held < width; held++) {
        if (PyObject_GetBuffer(PyList_GetItem(list, held), &views[held], PyBUF_SIMPLE) < 0)
            break;
        planes[held] = (plane_t){views[held].buf, views[held].len != 1};
        if (views[held].len != count && views[held].len != 1) {
            PyErr_Format(PyExc_ValueError, "a plane of %zd bytes for %zd elements", views[held].len, count);
            good = false;
        }
    }
    if (good && held == width) {
        size_t bytes = (size_t)count * (size_t)width;
        memory = memory_new(self, bytes + (size_t)tail.len);
        if (memory) {
            Py_BEGIN_ALLOW_THREADS
            planes_join(planes, (size_t)count, width, rotated, memory->data);
            memcpy(memory->data + bytes, tail.buf, (size_t)tail.len);
            Py_END_ALLOW_THREADS
        }
    }
    while (held-- > 0)
        PyBuffer_Release(&views[held]);
    PyBuffer_Release(&tail);
    return (PyObject *)memory;
}

static PyObject *variants(PyObject *self, PyObject *args)
{
    static const char *const names[] = {"avx512", "avx2", "scalar"};
    (void)self;
    (void)args;
    PyObject *found = PyList_New(0);
    for (size_t i = 0; found && i < sizeof names / sizeof *names; i++) {
        if (!kernel_select(names[i]))
            continue;
        PyObject *name = PyUnicode_FromString(names[i]);
        if (!name || PyList_Append(found, name) < 0)
            Py_CLEAR(found);
        Py_XDECREF(name);
    }
    return found;
}

static PyMethodDef methods[] = {
    {"encode", encode, METH_VARARGS,
     "encode(block, element, tokens, source, base, sibling, sibling_digest, prediction, row, first, limit, variant) "
     "-> Memory?"},
    {"pack", pack, METH_VARARGS,
     "pack(block, element, base, sibling, sibling_digest, predicts, row, first, is_moment, limit, variant) "
     "-> (Memory?, bits)"},
    {"decode", decode, METH_VARARGS, "decode(payload, length, base, sibling, variant) -> Memory, or why not"},
    {"prove", prove, METH_VARARGS, "prove(payload, block, base, sibling, variant) -> 0, or what is wrong"},
    {"split", split, METH_VARARGS, "split(block, width, rotated) -> Memory, its planes one after another"},
    {"join", join, METH_VARARGS, "join(planes, count, width, rotated, tail) -> Memory, the block"},
    {"variants", variants, METH_NOARGS, "Names of the variants that run here, the best first."},
    {NULL, NULL, 0, NULL},
};

/* Counted up when arguments or payloads change: kernel.py refuses a module that was built before. */
enum { FACE = 5 };

static int set_up(PyObject *self)
{
    static const struct {
        const char *name;
        long value;
    } constants[] = {
        {"FACE", FACE}, {"CONSTANT", PLAN_CONSTANT}, {"REGULAR", PLAN_REGULAR}, {"REPEATS", PLAN_REPEATS},
        {"DELTA", PLAN_DELTA}, {"WRONG", PLAN_WRONG},
    };
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (PyModule_AddIntConstant(self, constants[i].name, constants[i].value) < 0)
            return -1;
    state_t *state = PyModule_GetState(self);
    state->memory_type = (PyTypeObject *)PyType_FromModuleAndSpec(self, &memory_spec, NULL);
    return state->memory_type ? 0 : -1;
}

static int module_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((state_t *)PyModule_GetState(self))->memory_type);
    return 0;
}

static int module_clear(PyObject *self)
{
    Py_CLEAR(((state_t *)PyModule_GetState(self))->memory_type);
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)set_up}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_kernel", "The float kernel (cas/spec/codecs.md, Kernel payload).", sizeof(state_t),
    methods, slots, module_traverse, module_clear, NULL,
};

PyMODINIT_FUNC PyInit__kernel(void)
{
    kernel_prepare();
    return PyModuleDef_Init(&module);
}
