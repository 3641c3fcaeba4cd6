// The page: what the reader does, to requests; what the server sends, to what is seen and kept.

import { addFrame, count, endAnswer, newAnswer, requestBody, wantsResults } from "./answer.js";
import { AnswerView, questionElement, sendOnEnter } from "./message.js";
import { EndKeeper } from "./scroll.js";
import { change, connectSettings, parseTools, settings } from "./settings.js";
import * as store from "./store.js";
import { getJson, postForFrames } from "./stream.js";

const KEEP_EVERY_MS = 500;
const TICK_MS = 500;
const COUNTED_AFTER_MS = 300; // the server counts an answer when it has noticed its end

const at = (id) => document.getElementById(id);
const views = new Map(); // of answers, by id
const end = new EndKeeper(at("scroller"), at("column"), at("to-end"));
let messages = [];
let running = null; // a run: {answer, view, abort, keptAt}
let hasForeignChange = false;
let retryWithKey = false;
let isLeaving = false; // then requests fail, which is no error

// ---- what is seen

function addView(message) {
  if (message.role === "user") at("log").append(questionElement(message));
  if (message.role === "assistant") {
    const view = new AnswerView(message, { retry, sendResults }, settings.openThinking && message.status === "streaming");
    views.set(message.id, view);
    at("log").append(view.element);
  }
}

function showAll() {
  views.clear();
  at("log").replaceChildren();
  messages.forEach(addView);
  messages.forEach((message, index) => views.get(message.id)?.setResults(resultsAfter(index)));
  showEnds();
}

function resultsAfter(index) {
  const next = messages.findIndex((message, other) => other > index && message.role !== "tool");
  return messages.slice(index + 1, next === -1 ? undefined : next);
}

function showEnds() {
  at("welcome").hidden = messages.length > 0;
  at("new-chat").disabled = messages.length === 0;
  const last = messages.at(-1);
  views.forEach((view, id) => view.setLast(id === last?.id));
}

function showRunning() {
  at("send").textContent = running ? "Stop" : "Send";
  at("send").classList.toggle("stop", Boolean(running));
  at("log").setAttribute("aria-busy", String(Boolean(running)));
}

// Tells what happened, with something to do about it if there is.
function notify(text, action = "", act = null) {
  const [span, button] = at("notice").children;
  span.textContent = text;
  button.textContent = action;
  button.hidden = !act;
  button.onclick = act && (() => (notify(""), act()));
  at("notice").hidden = !text;
  if (text) announce(text);
}

function announce(text) {
  at("announcement").textContent = text;
}

// ---- what is kept

function keep(message) {
  if (!store.writeMessage(message)) noticeNotKept();
}

function keepOrder() {
  if (!store.writeOrder(messages)) noticeNotKept();
}

function noticeNotKept() {
  notify("This browser has no room to keep the conversation: it will be gone when the page is closed.");
}

function restore() {
  messages = store.readConversation();
  showAll();
}

// ---- asking

function add(message) {
  messages.push(message);
  addView(message);
  keep(message);
}

function ask(text) {
  notify("");
  add({ id: newAnswer("").id, role: "user", content: text });
  answer();
}

function sendResults(asked, texts) {
  const results = asked.calls.map((call, index) => ({ ...newAnswer(""), role: "tool", callId: call.id, content: texts[index] }));
  results.forEach(({ id, role, callId, content }) => add({ id, role, callId, content }));
  views.get(asked.id).setResults(messages.slice(-results.length));
  answer();
  at("question").focus();
}

function retry(failed) {
  if (running || messages.at(-1) !== failed) return;
  messages.pop();
  views.get(failed.id).element.remove();
  views.delete(failed.id);
  answer();
  at("question").focus();
}

async function answer() {
  const { tools, error } = parseTools(settings.tools);
  const coming = newAnswer(settings.model);
  const sent = [...messages];
  add(coming);
  const run = { answer: coming, view: views.get(coming.id), abort: new AbortController(), keptAt: Date.now() };
  running = run;
  keepOrder();
  showEnds();
  showRunning();
  end.goToEnd();
  announce("The model answers.");
  await receive(run, sent, tools, error && `The tools in the settings can't be used. ${error}`);
  if (running === run) finish(run); // else a new chat has begun
  setTimeout(loadUsage, COUNTED_AFTER_MS);
}

async function receive(run, sent, tools, problem) {
  const { answer, view, abort } = run;
  const key = store.readForTab("key");
  let isDrawn = true;
  const draw = () => ((isDrawn = true), view.update());
  try {
    if (problem) throw new Error(problem);
    if (!settings.model) await loadModels();
    answer.model = settings.model;
    for await (const frame of postForFrames("v1/chat/completions", requestBody(sent, settings, tools), key, abort.signal)) {
      addFrame(answer, frame);
      if (running === run) keepNowAndThen(run);
      if (isDrawn) isDrawn = !requestAnimationFrame(draw);
    }
    endAnswer(answer, "done");
  } catch (error) {
    if (isLeaving) return endAnswer(answer, "interrupted");
    endAnswer(answer, error.name === "AbortError" ? "stopped" : "failed", error.message);
    if (error.status === 401) wantKey(true);
  }
}

function keepNowAndThen(run) {
  if (Date.now() - run.keptAt < KEEP_EVERY_MS) return;
  run.keptAt = Date.now();
  keep(run.answer);
}

function finish({ answer, view }) {
  running = null;
  view.update();
  keep(answer);
  if (hasForeignChange) messages.forEach(keep); // another tab may have dropped them
  hasForeignChange = false;
  keepOrder();
  showRunning();
  announce(answer.error ?? (wantsResults(answer) ? "The model asks for results of tools." : "The answer is complete."));
}

function stop() {
  running?.abort.abort();
}

function newChat() {
  stop();
  if (running) endAnswer(running.answer, "stopped");
  running = null;
  const old = messages;
  messages = [];
  showAll();
  showRunning();
  keepOrder();
  at("question").focus();
  notify("This is a new chat.", "Bring the old one back", () => bringBack(old));
}

function bringBack(old) {
  if (running) return;
  messages = old;
  messages.forEach(keep);
  keepOrder();
  showAll();
}

// ---- the server besides answers

async function loadModels() {
  const { data } = await getJson("v1/models", store.readForTab("key"));
  const names = (Array.isArray(data) ? data : []).map((model) => String(model.id));
  if (!names.length) throw new Error("The server has no model.");
  if (!names.includes(settings.model)) change("model", names[0]);
  at("model").replaceChildren(...names.map((name) => new Option(name, name, false, name === settings.model)));
  at("model").disabled = names.length === 1;
  at("welcome-model").textContent = settings.model;
}

// Shows what has been used in all; a server that does not say is no error.
async function loadUsage() {
  const { data } = await getJson("v1/usage", store.readForTab("key")).catch(() => ({}));
  const sum = (name) => (Array.isArray(data) ? data : []).reduce((total, item) => total + (Number(item?.[name]) || 0), 0);
  const requests = sum("requests");
  at("usage").hidden = !requests;
  const tokens = `${count(sum("prompt_tokens"))} tokens in (${count(sum("cached_tokens"))} cached), ${count(sum("completion_tokens"))} out`;
  at("usage").textContent = `So far ${count(requests)} request${requests === 1 ? "" : "s"}, ${tokens}; $${sum("cost").toFixed(4)} at the prices of hosted Kimi K3`;
}

function wantKey(forAnswer) {
  retryWithKey ||= forAnswer;
  at("key-form").hidden = false;
  at("key").focus();
}

async function useKey(event) {
  event.preventDefault();
  store.writeForTab("key", at("key").value.trim());
  at("key-form").hidden = true;
  await connect();
  if (!at("key-form").hidden) return; // it was another one
  const last = messages.at(-1);
  if (retryWithKey && last?.status === "failed") retry(last);
  retryWithKey = false;
  at("question").focus();
}

async function connect() {
  try {
    await loadModels();
    notify("");
    await loadUsage();
  } catch (error) {
    if (error.status === 401) wantKey(false);
    notify(error.message, error.status === 401 ? "" : "Try again", error.status === 401 ? null : connect);
  }
}

// ---- the question and the keyboard

function submit(event) {
  event.preventDefault();
  const question = at("question");
  if (running || !question.value.trim()) return;
  if (wantsResults(messages.at(-1))) {
    notify("The model waits for the results of its tools; an empty one will do.");
    views.get(messages.at(-1).id).focusResults();
    return;
  }
  ask(question.value);
  question.value = "";
  draft();
}

function draft() {
  const question = at("question");
  store.writeForTab("draft", question.value);
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight}px`;
}

function clickSend(event) {
  if (event.detail > 1) event.preventDefault(); // the second click of two was not meant for "Stop"
  else if (running) {
    event.preventDefault();
    stop();
  }
}

// ---- start

function listen() {
  at("composer").addEventListener("submit", submit);
  at("question").addEventListener("keydown", sendOnEnter);
  at("question").addEventListener("input", draft);
  at("send").addEventListener("click", clickSend);
  at("key-form").addEventListener("submit", useKey);
  at("new-chat").addEventListener("click", newChat);
  at("effort").addEventListener("change", () => change("effort", at("effort").value));
  at("model").addEventListener("change", () => {
    change("model", at("model").value);
    at("welcome-model").textContent = settings.model;
  });
  at("suggestions").addEventListener("click", (event) => event.target.matches("button") && !running && ask(event.target.textContent));
  addEventListener("keydown", (event) => event.key === "Escape" && !at("settings").open && stop());
  addEventListener("pagehide", () => (isLeaving = true) && running && keep(running.answer));
  addEventListener("pageshow", () => (isLeaving = false));
  store.onForeignChange(() => (running ? (hasForeignChange = true) : restore()));
  setInterval(() => running?.view.tick(), TICK_MS);
}

connectSettings(at("settings"), at("open-settings"));
at("effort").value = settings.effort;
at("question").value = store.readForTab("draft");
restore();
listen();
draft();
connect();
at("question").focus();
