// The page of `vitrine serve`: sends images to the server and shows what it answers. Names and messages come from files
// and from the server, so they become text nodes and never markup.

/** How many requests the server gets at once. The others wait in the page, where they can be taken back. */
const IN_FLIGHT = 2;
/** How often a request is repeated when the server is busy, and the longest wait before that in seconds. */
const RETRIES = 6, LONGEST_WAIT = 30;
/** How many labels an image shows: at first, and after each click on "more". */
const LABELS = [5, 20, 100, Infinity];
/** How many labels a request asks for, unless each label counts by itself. */
const ASKED = 100;
/** The probability from which a label counts in a model with several labels per image. */
const THRESHOLD = 0.5;
/** Images up to this side are enlarged without smoothing, as in vitrine's reports. */
const PIXELATED = 96;
const METHODS = {
  "attention": "Attention", "rollout": "Attention rollout", "gradient-attention": "Gradient × attention",
  "pooling": "Pooling weights", "grad-cam": "Grad-CAM", "patch-logits": "Patch logits",
};

const byId = (id) => document.getElementById(id);
const plural = (count, noun, nouns = `${noun}s`) => `${count.toLocaleString("en")} ${count === 1 ? noun : nouns}`;

function percent(probability) {
  if (probability > 0 && probability < 0.0005) return "<0.1%";
  if (probability < 1 && probability >= 0.9995) return ">99.9%";
  return `${(100 * probability).toFixed(1)}%`;
}

/** A copy of what is in a template. */
const copyOf = (id) => byId(id).content.firstElementChild.cloneNode(true);

/** Shows `text`, in a direction of its own, in an element that may cut it, and in full as its title. */
function setName(target, text) {
  target.firstElementChild.textContent = target.title = text;
}

/** Replaces the options of `select` by `[value, text]`. */
function setOptions(select, options) {
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
}

/** Says `text` to users of a screen reader. */
function announce(text) {
  byId("announcer").textContent = text;
}

// Token. Where the browser refuses storage, it lasts until the page is reloaded.

function inStorage(use) {
  try {
    return use(sessionStorage);
  } catch {
    return null;
  }
}

let token = inStorage((storage) => storage.getItem("vitrine-token")) ?? "";
const tokenWaiters = [];

/** Shows the form, and resolves when a token was entered after `refused`. */
function tokenAfter(refused) {
  if (token !== refused) return Promise.resolve();
  byId("token-problem").textContent = refused ? "The server does not accept this token." : "";
  if (byId("token-form").hidden) {
    byId("token-form").hidden = false;
    byId("token").focus();
  }
  return new Promise((resolve) => tokenWaiters.push(resolve));
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value.trim();
  inStorage((storage) => storage.setItem("vitrine-token", token));
  byId("token").value = "";
  byId("token-form").hidden = true;
  byId("heading").focus();
  for (const resolve of tokenWaiters.splice(0)) resolve();
});

// Requests.

/** Sends a request until there is an answer: its `value`, read `as` "json" or "blob", and how long it took. */
async function request(path, { as = "json", signal, onBusy, ...options } = {}) {
  for (let retries = 0; ;) {
    const sent = token, start = performance.now();
    const headers = { ...options.headers, ...(sent && { Authorization: `Bearer ${sent}` }) };
    let response;
    try {
      response = await fetch(path, { ...options, headers, signal, cache: "no-store" });
      if (response.ok) return { value: await response[as](), milliseconds: performance.now() - start };
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Error("The server did not answer. Is it still running, and is this device still connected?");
    }
    if (response.status === 401) {
      await tokenAfter(sent);
      signal?.throwIfAborted();
    } else if (response.status === 503 && retries < RETRIES) {
      retries += 1;
      const seconds = Math.min(Number(response.headers.get("Retry-After")) || 1, LONGEST_WAIT);
      onBusy?.(seconds);
      await pause(seconds, signal);
    } else {
      throw new Error(await explanation(response));
    }
  }
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
  });
}

/** What a refusal means, with the reason that the server gives. */
async function explanation(response) {
  const meaning = {
    404: "The server does not have this model anymore. Reload the page.",
    408: "The image took too long to arrive at the server.",
    413: "This file is too large for the server.",
    422: "This file could not be read as an image.",
    503: "The server has too much to do.",
  }[response.status] ?? `The server could not answer (status ${response.status}).`;
  const reason = (await response.json().catch(() => null))?.error;
  return reason ? `${meaning} The server says: ${reason}` : meaning;
}

const queue = [];
let running = 0;

/** Runs `task` once fewer than `IN_FLIGHT` others run. An `urgent` one, which somebody just clicked, overtakes. */
function enqueue(task, signal, urgent) {
  return new Promise((resolve, reject) => {
    queue[urgent ? "unshift" : "push"]({ task, signal, resolve, reject });
    startNext();
  });
}

function startNext() {
  while (running < IN_FLIGHT && queue.length > 0) {
    const { task, signal, resolve, reject } = queue.shift();
    if (signal.aborted) {
      reject(signal.reason);
    } else {
      running += 1;
      task().then(resolve, reject).finally(() => { running -= 1; startNext(); });
    }
  }
  showProgress();
}

function showProgress() {
  const waiting = queue.filter(({ signal }) => !signal.aborted).length;
  const more = waiting > 0 ? `, ${waiting.toLocaleString("en")} waiting` : "";
  byId("progress").textContent = running > 0 ? `${running} in progress${more}` : "";
}

// Models.

let models = [];
const chosenModel = () => models[byId("models").selectedIndex];
const canClassify = () => chosenModel()?.classes.length > 0;

async function loadModels() {
  showNotice("");
  try {
    ({ models } = (await request("models")).value);
    setOptions(byId("models"), models.map(({ name }) => [name, name]));
    showModel();
  } catch (error) {
    showNotice(error.message, true);
  }
}

function showModel() {
  const { name, classes, multi_label: severalLabels, image_size: [height, width], parameters } = chosenModel();
  const single = models.length === 1;
  byId("model").hidden = byId("start").hidden = false;
  byId("model-choice").hidden = single;
  byId("model-name").textContent = single ? name : "";
  const count = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(parameters);
  byId("facts").textContent =
    `${width} × ${height} pixels · ${count} parameters${severalLabels ? " · several labels per image" : ""}`;
  byId("classes").hidden = !canClassify();
  byId("class-count").textContent = plural(classes.length, "class", "classes");
  // The signs give each name a direction of its own.
  byId("class-names").textContent = classes.map((label) => `\u2068${label}\u2069`).join(", ");
  for (const id of ["choose", "take-photo"]) byId(id).disabled = !canClassify();
  showNotice(canClassify() ? "" : `“${name}” has no classifier: it can embed images, but not classify them.`);
}

function showNotice(text, canRetry = false) {
  byId("notice").hidden = text === "";
  byId("notice-text").textContent = text;
  byId("reload").hidden = !canRetry;
}

byId("reload").addEventListener("click", loadModels);
byId("models").addEventListener("change", () => {
  showModel();
  for (const entry of entries) entry.render();
  if (canClassify()) entries[0]?.classify(true);
});

// Images of this visit.

/** Newest first. */
let entries = [];

/** An image with its card. `render` shows these fields; what changes one of them calls it, mostly through `set`. */
class Entry {
  status = "";           // What is under way. Empty when there is an answer or a problem.
  problem = "";
  answer = null;         // The JSON of the server,
  model = null;          // the model that gave it,
  milliseconds = 0;      // and the time it took.
  shown = 0;             // How many labels are shown.
  method = null;         // The method whose overlay is shown in place of the image.
  overlays = new Map();  // The addresses of overlays by method.
  asking = null;         // The AbortControllers of the requests for an answer
  looking = null;        // and for an overlay.

  constructor(file) {
    this.file = file;
    this.address = URL.createObjectURL(file);
    this.root = copyOf("card");
    const part = this.part = (className) => this.root.querySelector(`.${className}`);
    part("card").setAttribute("aria-label", file.name);
    setName(part("name"), file.name);
    part("remove").setAttribute("aria-label", `Remove ${file.name}`);
    part("image").addEventListener("error", () => part("frame").classList.add("blank"));
    part("image").addEventListener("load", ({ target }) => {
      part("frame").classList.remove("blank");
      target.classList.toggle("pixelated", Math.max(target.naturalWidth, target.naturalHeight) <= PIXELATED);
    });
    part("more").addEventListener("click", () => this.set({ shown: this.next() ?? this.atFirst() }));
    part("look").addEventListener("click", () => this.look(this.method || this.looking ? null : part("method").value));
    part("method").addEventListener("change", () => this.method && this.look(part("method").value));
    part("copy").addEventListener("click", () => this.copy());
    part("again").addEventListener("click", () => {
      this.classify(true);
      part("card").focus(); // The button is gone.
    });
    part("remove").addEventListener("click", () => removeEntry(this));
  }

  set(fields) {
    Object.assign(this, fields);
    this.render();
  }

  /** Asks the model that is chosen now. */
  async classify(urgent = false) {
    this.asking?.abort();
    const { signal } = this.asking = new AbortController();
    const model = chosenModel();
    const top = model.multi_label ? Math.min(model.classes.length, 1000) : Math.min(model.classes.length, ASKED);
    const path = `classify?model=${encodeURIComponent(model.name)}&top=${top}`;
    const onBusy = (seconds) => this.set({ status: `The server is busy, next try in ${plural(seconds, "second")}` });
    this.set({ status: "Waiting for its turn", problem: "" });
    try {
      const { value: answer, milliseconds } = await enqueue(() => {
        this.set({ status: "Classifying …" });
        return this.post(path, { signal, onBusy });
      }, signal, urgent);
      this.forgetOverlays();
      setOptions(this.part("method"), model.explain.map((method) => [method, METHODS[method] ?? method]));
      Object.assign(this, { status: "", answer, model, milliseconds });
      this.set({ shown: this.atFirst() });
      announce(this.summary());
    } catch (error) {
      if (signal.aborted) return;
      this.forgetOverlays();
      this.fail(error, { status: "", answer: null });
    }
  }

  /** Shows the overlay of `method`, or the image if it is `null`. */
  async look(method) {
    this.looking?.abort();
    this.set({ looking: null, problem: "" });
    if (method === null || this.overlays.has(method)) {
      this.set({ method });
      return;
    }
    const { signal } = this.looking = new AbortController();
    this.render();
    try {
      const path = `explain?model=${encodeURIComponent(this.model.name)}&method=${encodeURIComponent(method)}`;
      const { value } = await enqueue(() => this.post(path, { as: "blob", signal }), signal, true);
      signal.throwIfAborted();
      this.overlays.set(method, URL.createObjectURL(value));
      this.set({ method, looking: null });
      announce(`${this.file.name} shows what the model looked at`);
    } catch (error) {
      if (!signal.aborted) this.fail(error, { method: null, looking: null });
    }
  }

  async post(path, options) {
    try {
      await this.file.slice(0, 1).arrayBuffer(); // `fetch` could not tell this from a server that is gone.
    } catch {
      throw new Error("The browser cannot read this file. If it is a folder, add the images in it instead.");
    }
    // A file of another type may still be an image: the server looks at its bytes. These say nothing in a TGA file, for which browsers have
    // several types.
    const stated = this.file.type.startsWith("image/") ? this.file.type : "application/octet-stream";
    const type = /\.tga$/i.test(this.file.name) ? "image/x-tga" : stated;
    const headers = { "Content-Type": type };
    return request(path, { method: "POST", body: this.file, headers, ...options });
  }

  fail(error, fields) {
    this.set({ ...fields, problem: error.message });
    announce(`${this.file.name}: ${error.message}`);
  }

  async copy() {
    const copied = await copyText(JSON.stringify({ file: this.file.name, ...this.answer }, null, 2));
    const text = this.part("copy").textContent = copied ? "Copied" : "Could not copy";
    announce(text);
    setTimeout(() => { this.part("copy").textContent = "Copy JSON"; }, 2000);
  }

  forgetOverlays() {
    this.looking?.abort();
    for (const address of this.overlays.values()) URL.revokeObjectURL(address);
    Object.assign(this, { method: null, looking: null, overlays: new Map() });
  }

  /** Stops what is under way and frees the memory of the image. */
  discard() {
    this.asking?.abort();
    this.forgetOverlays();
    URL.revokeObjectURL(this.address);
    this.root.remove();
  }

  predictions() {
    return this.answer?.results[0].predictions ?? [];
  }

  /** The labels that count, if the model gives several per image. */
  marked() {
    return this.model?.multi_label ? this.predictions().filter(({ probability }) => probability >= THRESHOLD) : [];
  }

  /** How many labels to show at first: at least those that count. */
  atFirst() {
    return Math.min(this.predictions().length, Math.max(LABELS[0], this.marked().length));
  }

  /** How many labels to show after the next click on "more"; `undefined` if all are shown. */
  next() {
    const total = this.predictions().length;
    return this.shown < total ? Math.min(total, LABELS.find((count) => count > this.shown)) : undefined;
  }

  summary() {
    const named = this.model.multi_label ? this.marked().slice(0, LABELS[0]) : this.predictions().slice(0, 1);
    const labels = named.map(({ label, probability }) => `${label} ${percent(probability)}`);
    return `${this.file.name}: ${labels.join(", ") || "no label reaches 50%"}`;
  }

  render() {
    const { answer, model, part } = this;
    const show = (className, condition) => { part(className).hidden = !condition; };
    this.root.classList.toggle("pending", this.status !== "");
    this.root.classList.toggle("several", Boolean(model?.multi_label));

    const address = this.overlays.get(this.method) ?? this.address;
    if (part("image").src !== address) part("image").src = address;
    part("image").alt = this.method ? `What ${model.name} looked at in ${this.file.name}` : this.file.name;
    show("key", this.method);

    const from = models.length > 1 && model ? `${model.name} · ` : "";
    part("meta").textContent = this.status || (answer ? `${from}${Math.round(this.milliseconds)} ms` : "");
    part("problem").textContent = this.problem;

    const marked = new Set(this.marked());
    const rows = this.predictions().slice(0, this.shown).map((each) => labelRow(each, marked.has(each)));
    part("labels").replaceChildren(...rows);
    show("none-marked", answer && model.multi_label && marked.size === 0);
    show("more", this.predictions().length > this.atFirst());
    part("more").textContent = this.next() ? plural(this.next() - this.shown, "more label") : "Fewer labels";

    show("look", answer && model.explain.length > 0);
    part("look").textContent = this.looking ? "Looking …" : "What it looked at";
    part("look").setAttribute("aria-pressed", this.method !== null);
    show("method", this.method && model.explain.length > 1);
    show("copy", answer);
    const asksOther = answer && model !== chosenModel();
    show("again", !this.status && canClassify() && (asksOther || !answer));
    part("again").textContent = asksOther ? `Ask ${chosenModel().name}` : "Try again";
  }
}

/** A label with its probability as text and as a bar. */
function labelRow({ label, probability }, isMarked) {
  const row = copyOf("row"), [name, value, track] = row.children;
  row.classList.toggle("marked", isMarked);
  setName(name, label);
  value.textContent = percent(probability);
  track.firstElementChild.setAttribute("width", percent(probability).replace(/[<>]/, ""));
  return row;
}

function addFiles(files) {
  if (files.length === 0) return;
  if (!canClassify()) {
    announce(byId("notice-text").textContent);
    return;
  }
  const added = files.map((file) => new Entry(file));
  entries = [...added, ...entries];
  byId("images").prepend(...added.map(({ root }) => root));
  showEntries();
  announce(`${plural(added.length, "image")} added`);
  for (const entry of added) entry.classify();
  added[0].root.scrollIntoView({ block: "nearest" });
}

function removeEntry(entry) {
  const place = entries.indexOf(entry);
  entries.splice(place, 1);
  entry.discard();
  showEntries();
  const neighbor = entries[place] ?? entries[place - 1];
  (neighbor?.part("remove") ?? byId("choose")).focus();
  announce(`${entry.file.name} removed`);
}

function clearEntries() {
  for (const entry of entries.splice(0)) entry.discard();
  showEntries();
  byId("choose").focus();
  announce("All images removed");
}

function showEntries() {
  byId("results").hidden = entries.length === 0;
  byId("start").classList.toggle("compact", entries.length > 0);
  showProgress();
}

byId("clear").addEventListener("click", clearEntries);

/** Copies to the clipboard. On a page without HTTPS, browsers offer only the older command. */
async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const focused = document.activeElement, area = document.createElement("textarea");
  area.className = "visually-hidden";
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  focused.focus();
  return copied;
}

// Files, drop, and paste.

byId("choose").addEventListener("click", () => byId("files").click());
byId("files").addEventListener("change", ({ target }) => {
  addFiles([...target.files]);
  target.value = ""; // So that the same file can be chosen again.
});

const holdsFiles = ({ dataTransfer }) => dataTransfer.types.includes("Files");
addEventListener("dragover", (event) => {
  if (!holdsFiles(event)) return;
  event.preventDefault();
  document.body.classList.add("dragging");
});
addEventListener("dragleave", ({ relatedTarget }) => {
  if (!relatedTarget) document.body.classList.remove("dragging"); // Out of the window.
});
addEventListener("drop", (event) => {
  document.body.classList.remove("dragging");
  if (!holdsFiles(event)) return;
  event.preventDefault();
  addFiles([...event.dataTransfer.files]);
});

let namedFiles = 0;
const withName = (blob, kind) =>
  new File([blob], `${kind}-${++namedFiles}.${blob.type.split("/")[1]}`, { type: blob.type });

addEventListener("paste", ({ clipboardData }) => {
  // Browsers call every screenshot image.png. Copied files have names of their own.
  addFiles([...clipboardData.files].map((file) => file.name === "image.png" ? withName(file, "pasted") : file));
});
if (/Mac|iP(hone|ad)/.test(navigator.platform)) byId("paste-keys").textContent = "⌘V";

// Camera.

const video = byId("video");
let cameraVisit = 0; // Counts stops, so that a camera that starts after its dialog was closed is noticed.

const stopTracks = (stream) => stream?.getTracks().forEach((track) => track.stop());

function stopCamera() {
  cameraVisit += 1;
  stopTracks(video.srcObject);
  video.srcObject = null;
}

async function startCamera(choice) {
  stopCamera();
  const visit = cameraVisit;
  byId("camera-problem").textContent = "";
  try {
    const size = { width: { ideal: 1280 }, height: { ideal: 960 } };
    const stream = await navigator.mediaDevices.getUserMedia({ video: { ...choice, ...size } });
    if (visit !== cameraVisit) {
      stopTracks(stream);
      return;
    }
    video.srcObject = stream;
    const { deviceId, facingMode } = stream.getVideoTracks()[0].getSettings();
    video.classList.toggle("mirrored", facingMode === "user");
    const cameras = await findCameras(); // Browsers tell their names only after permission was given.
    const named = cameras.map((camera, index) => [camera.deviceId, camera.label || `Camera ${index + 1}`]);
    setOptions(byId("cameras"), named);
    byId("cameras").value = deviceId;
    byId("camera-choice").hidden = cameras.length < 2;
  } catch (error) {
    if (visit !== cameraVisit) return;
    byId("camera-problem").textContent = {
      NotAllowedError: "The browser does not let this page use the camera. Allow it in the site settings, next to the "
        + "address of this page, and open the camera again.",
      NotFoundError: "There is no camera.",
      NotReadableError: "The camera does not start. Perhaps another program uses it.",
    }[error.name] ?? `The camera does not start (${error.name}).`;
  }
}

async function findCameras() {
  const devices = await navigator.mediaDevices.enumerateDevices();
  return devices.filter(({ kind }) => kind === "videoinput");
}

function takePhoto() {
  if (video.readyState < HTMLMediaElement.HAVE_CURRENT_DATA) return;
  const canvas = document.createElement("canvas");
  canvas.width = video.videoWidth;
  canvas.height = video.videoHeight;
  canvas.getContext("2d").drawImage(video, 0, 0);
  canvas.toBlob((blob) => addFiles([withName(blob, "photo")]), "image/jpeg", 0.92);
  byId("camera").close();
}

async function offerCamera() {
  byId("no-camera").hidden = isSecureContext;
  byId("take-photo").hidden = !navigator.mediaDevices || (await findCameras()).length === 0;
}

byId("take-photo").addEventListener("click", () => {
  byId("camera").showModal();
  startCamera({ facingMode: "environment" });
});
byId("cameras").addEventListener("change", ({ target }) => startCamera({ deviceId: { exact: target.value } }));
byId("shutter").addEventListener("click", takePhoto);
byId("close-camera").addEventListener("click", () => byId("camera").close());
byId("camera").addEventListener("close", stopCamera); // Also after Escape.
navigator.mediaDevices?.addEventListener("devicechange", offerCamera);

offerCamera();
loadModels();
