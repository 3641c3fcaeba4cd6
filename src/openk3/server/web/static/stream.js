// Requests to the server: JSON, and answers that come as server-sent events.

// A request that failed; its message is meant for the reader, `status` is 0 if no answer came.
export class RequestError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

// Gets JSON; throws RequestError.
export async function getJson(path, key) {
  const response = await request(path, { headers: headersFor(key) });
  try {
    return await response.json();
  } catch {
    throw new RequestError(`The server's answer to ${path} is not JSON.`, response.status);
  }
}

// Posts `body` and gives the frames of the streamed answer; throws RequestError, and AbortError once `signal` says so.
export async function* postForFrames(path, body, key, signal) {
  const headers = { ...headersFor(key), "Content-Type": "application/json" };
  const response = await request(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!(response.headers.get("Content-Type") ?? "").startsWith("text/event-stream")) {
    throw new RequestError("The server's answer is not a stream of events.", response.status);
  }
  try {
    for await (const data of eventData(response.body)) {
      if (data === "[DONE]") return;
      yield frameOf(data);
    }
  } catch (error) {
    if (error instanceof RequestError || error.name === "AbortError") throw error;
    throw new RequestError("The answer broke off: the connection to the server was lost.");
  }
  throw new RequestError("The answer broke off: the server closed the connection before its end.");
}

function frameOf(data) {
  let frame;
  try {
    frame = JSON.parse(data);
  } catch {
    throw new RequestError("The answer broke off: the server sent something that is not JSON.");
  }
  if (frame?.error) throw new RequestError(sentence(frame.error.message) || "The server could not finish the answer.");
  return frame;
}

// Gives the data of each event of a stream of bytes, however the bytes are cut into chunks.
export async function* eventData(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        if (line === "" && data.length) yield data.splice(0).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("The server cannot be reached. Is it still running?");
  }
  if (!response.ok) throw new RequestError(await messageOf(response), response.status);
  return response;
}

async function messageOf(response) {
  const wait = response.headers.get("Retry-After");
  const later = /^\d+$/.test(wait ?? "") ? ` Try again in ${wait} s.` : "";
  const text = await response.text().catch(() => "");
  try {
    const message = sentence(JSON.parse(text).error.message);
    if (message) return message + later;
  } catch {
    // A gateway in between answers with a page of its own, which is of no use here.
  }
  return `The server answered ${response.status} ${response.statusText}`.trimEnd() + "." + later;
}

function sentence(text) {
  if (typeof text !== "string" || !text) return "";
  return text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

function headersFor(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}
