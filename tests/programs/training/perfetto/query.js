// Opens a trace with the reader of ui.perfetto.dev, and answers queries about it:
//
//     node query.js FOLDER TRACE SQL...
//
// FOLDER has engine_bundle.js and trace_processor.wasm, which the page runs in a web worker. This gives them the few
// things of a browser that they use. Prints one line per query, its text cells one after the other. An error of the
// reader goes to standard error, and the exit code is 1.

const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [folder, trace, ...queries] = process.argv.slice(2);
const read = (url) => fs.readFileSync(path.join(folder, path.basename(String(url))));

class XMLHttpRequest {
  open(_, url) {
    this.url = url;
  }
  send() {
    this.status = 200;
    this.response = copy(read(this.url)).buffer;
  }
}
const quiet = { log() {}, warn() {}, error: console.error };
const worker = { console: quiet, performance, setTimeout, clearTimeout, TextDecoder, TextEncoder, URL, XMLHttpRequest };
worker.self = worker;
worker.location = { href: "http://here/engine_bundle.js" };
worker.WorkerGlobalScope = worker.importScripts = () => {};
vm.createContext(worker);
const Bytes = vm.runInContext("Uint8Array", worker);
const copy = (buffer) => new Bytes(buffer);

// Messages: protos/perfetto/trace_processor/trace_processor.proto of https://github.com/google/perfetto (2026-11-22)
const [SEQUENCE, METHOD, FATAL, DATA, QUERY, APPENDED, ANSWER] = [1, 2, 5, 101, 103, 201, 203]; // TraceProcessorRpc
const [APPEND, FINALIZE, ASK] = [1, 2, 3]; // TraceProcessorMethod
const ERROR = 2; // of AppendTraceDataResult and of QueryResult
const [BATCH, TEXT_CELLS] = [3, 5]; // of QueryResult, and in a batch

function varint(number) {
  const bytes = [];
  for (; number > 127; number = Math.floor(number / 128)) bytes.push((number % 128) + 128);
  return Buffer.from([...bytes, number]);
}

function field(number, value) {
  if (typeof value === "number") return Buffer.concat([varint(number * 8), varint(value)]);
  return Buffer.concat([varint(number * 8 + 2), varint(value.length), Buffer.from(value)]);
}

function* fields(bytes) {
  let place = 0;
  const next = () => {
    let number = 0;
    for (let unit = 1; ; unit *= 128) {
      const byte = bytes[place++];
      number += (byte & 127) * unit;
      if (byte < 128) return number;
    }
  };
  while (place < bytes.length) {
    const key = next();
    const value = next(); // or the length of what follows
    if (key % 8 === 0) yield [key >> 3, value];
    else if (key % 8 === 2) yield [key >> 3, bytes.subarray(place, (place += value))];
    else throw new Error(`a field of type ${key % 8}`);
  }
}

function fail(message) {
  console.error(String(message));
  process.exit(1);
}

function answer(message) {
  for (const [, rpc] of fields(Buffer.from(message))) {
    for (const [kind, content] of fields(rpc)) {
      if (kind === FATAL) fail(content);
      if (kind !== APPENDED && kind !== ANSWER) continue;
      for (const [part, value] of fields(content)) {
        if (part === ERROR) fail(value);
        if (kind === ANSWER && part === BATCH) print(value);
      }
    }
  }
}

function print(batch) {
  for (const [kind, cells] of fields(batch)) if (kind === TEXT_CELLS) console.log(String(cells).replace(/\0/g, ""));
}

let sent = 0;
const port = { postMessage: answer };
const send = (method, ...more) =>
  port.onmessage({ data: copy(field(1, Buffer.concat([field(SEQUENCE, ++sent), field(METHOD, method), ...more]))) });

vm.runInContext(String(read("engine_bundle.js")), worker);
worker.onmessage({ data: port });
// The reader gets ready in promises that come before this.
setTimeout(() => {
  const content = fs.readFileSync(trace);
  for (let i = 0; i < content.length; i += 1 << 20) send(APPEND, field(DATA, content.subarray(i, i + (1 << 20))));
  send(FINALIZE);
  for (const query of queries) send(ASK, field(QUERY, field(1, query)));
});
