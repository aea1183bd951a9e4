// The server's routes (below ./api/). Every function throws an Error with the server's own words.

const NETWORK = "error.network"; // a key of i18n.js: here the server could not say anything itself

const asked = async (path, options) => {
  let response;
  try {
    response = await fetch(`api/${path}`, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw Object.assign(new Error("the server does not answer"), { key: NETWORK });
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  throw Object.assign(new Error(said.error ?? `${response.status} ${response.statusText}`), { status: response.status });
};

const ask = (path, body, signal) =>
  asked(path, body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });

const json = async (path, body, signal) => (await ask(path, body, signal)).json();

/** The lines of a stream as they come, each parsed; half a line waits for its other half. */
const lines = async (response, onLine) => {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value = "" } = await reader.read();
    const parts = (rest + value).split("\n");
    rest = done ? "" : parts.pop();
    for (const part of parts.filter(Boolean)) onLine(JSON.parse(part));
    if (done) return;
  }
};

const translate = async (body, onLine, signal) => {
  const response = await ask("translate", body, signal);
  let finished = false;
  const heard = (line) => {
    if (line.kind === "error") throw new Error(line.error);
    finished ||= line.kind === "done";
    onLine(line);
  };
  try {
    await lines(response, heard);
  } catch (error) {
    throw error instanceof TypeError ? Object.assign(error, { key: NETWORK }) : error;
  }
  if (!finished) throw Object.assign(new Error("the answer ended too early"), { key: NETWORK });
};

/** Maps as typed arrays that view the one buffer the server sent: [{name, heads, shape, data, scale}]. */
export const unpack = (buffer) => {
  const length = new DataView(buffer).getUint32(0, true);
  const { maps, dtype } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const Data = dtype === "u8" ? Uint8Array : Float32Array;
  return maps.map(({ offset, ...map }) => {
    const size = map.shape.reduce((a, b) => a * b, 1);
    return { ...map, data: new Data(buffer, 4 + length + offset, size) };
  });
};

export const api = {
  translate,
  /** The name of a picture from now on. */
  picture: async (model, file) => {
    const headers = { "Content-Type": "application/octet-stream" };
    const response = await asked(`pictures?model=${encodeURIComponent(model)}`, { method: "POST", headers, body: file });
    return (await response.json()).picture;
  },
  models: () => json("models"),
  score: (body, signal) => json("score", body, signal),
  maps: async (body, signal) => unpack(await (await ask("maps", body, signal)).arrayBuffer()),
  neuron: (body, signal) => json("neuron", body, signal),
  measures: (body, signal) => json("measures", body, signal),
  recall: (body, signal) => json("recall", body, signal),
  faithfulness: (body, signal) => json("faithfulness", body, signal),
  atlas: (model) => json(`atlas?model=${encodeURIComponent(model)}`),
  atlasFile: async (model) => (await ask(`atlas?model=${encodeURIComponent(model)}`)).blob(),
  page: async (body) => (await ask("page", body)).blob(),
};
