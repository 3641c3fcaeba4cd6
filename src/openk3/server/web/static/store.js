// What outlives a reload: settings and the conversation, in this browser only.
// Unusual: each message has an entry of its own, so that a long conversation is not written anew with every word.

const PREFIX = "openk3.";
const MESSAGE = "message.";
const DEFAULTS = { model: "", effort: "max", theme: "system", openThinking: false, system: "", tools: "" };

// Reads an entry; `fallback` if there is none, or something else in its place.
function read(name, fallback) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + name)) ?? fallback;
  } catch {
    return fallback;
  }
}

// Writes an entry; false if the browser has no room or allows no storage.
function write(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

// Returns the settings, with a default for each that is missing or of another type.
export function readSettings() {
  const kept = read("settings", {});
  const entries = Object.entries(DEFAULTS);
  return Object.fromEntries(entries.map(([name, value]) => [name, typeof kept[name] === typeof value ? kept[name] : value]));
}

export function writeSettings(settings) {
  return write("settings", settings);
}

// The API key and the draft end with the tab.
export function readForTab(name) {
  try {
    return sessionStorage.getItem(PREFIX + name) ?? "";
  } catch {
    return "";
  }
}

export function writeForTab(name, text) {
  try {
    sessionStorage.setItem(PREFIX + name, text);
  } catch {
    // Then it is only there until the next reload.
  }
}

// Returns the messages that were kept; an answer that was still coming has been interrupted since.
export function readConversation() {
  const ids = read("conversation", {}).ids;
  const messages = (Array.isArray(ids) ? ids : []).map((id) => read(MESSAGE + id, null)).filter(isMessage);
  for (const message of messages) if (message.status === "streaming") message.status = "interrupted";
  return messages;
}

function isMessage(message) {
  if (!message || typeof message.id !== "string" || typeof message.content !== "string") return false;
  if (message.role === "user") return true;
  if (message.role === "tool") return typeof message.callId === "string";
  return message.role === "assistant" && typeof message.reasoning === "string" && Array.isArray(message.calls);
}

// Keeps one message; false if that was not possible.
export function writeMessage(message) {
  return write(MESSAGE + message.id, message);
}

// Keeps which messages there are and in which order, and drops all others; false if that was not possible.
export function writeOrder(messages) {
  const kept = new Set(messages.map((message) => PREFIX + MESSAGE + message.id));
  try {
    const names = Object.keys(localStorage).filter((name) => name.startsWith(PREFIX + MESSAGE) && !kept.has(name));
    names.forEach((name) => localStorage.removeItem(name));
  } catch {
    return false;
  }
  // The time makes other tabs notice, even when the order is as before.
  return write("conversation", { ids: messages.map((message) => message.id), written: Date.now() });
}

// Calls back when another tab has changed the conversation.
export function onForeignChange(callback) {
  addEventListener("storage", (event) => {
    if (event.key === PREFIX + "conversation") callback();
  });
}
