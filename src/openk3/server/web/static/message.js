// How messages look: a question, and an answer with its thinking, calls, cost and what can be done with it.
// Unusual: an answer's elements are made once and updated in place, so that what is open or selected stays so.

import { readOut, wantsResults } from "./answer.js";
import { LiveMarkdown } from "./markdown.js";

let fieldCount = 0;

// Makes an element; `children` are elements or texts, and texts stay texts.
function make(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

export function questionElement(message) {
  const heading = make("h2", { className: "unseen" }, "You");
  return make("article", { className: "question" }, heading, make("div", { className: "bubble", dir: "auto" }, message.content));
}

// An answer; `actions` has `retry(answer)` and `sendResults(answer, texts)`.
export class AnswerView {
  #answer;
  #actions;
  #results = [];
  #shownThinking = 0;
  #calls = [];

  constructor(answer, actions, openThinking) {
    this.#answer = answer;
    this.#actions = actions;
    this.waiting = make("p", { className: "waiting" });
    this.summary = make("summary");
    this.thought = make("div", { className: "thought", dir: "auto" });
    this.thinking = make("details", { className: "thinking", open: openThinking }, this.summary, this.thought);
    this.summary.addEventListener("click", () => (this.touched = true));
    this.text = make("div", { className: "text", dir: "auto" });
    this.markdown = new LiveMarkdown(this.text);
    this.calls = make("form", { className: "calls" });
    this.calls.addEventListener("submit", (event) => this.#submit(event));
    this.state = make("p", { className: "state" });
    this.stats = make("p", { className: "stats" });
    this.copy = make("button", { type: "button", className: "quiet" }, "Copy");
    this.copy.addEventListener("click", () => this.#copy());
    this.again = make("button", { type: "button", className: "quiet again" });
    this.again.addEventListener("click", () => actions.retry(answer));
    const foot = make("div", { className: "foot" }, this.stats, this.copy, this.again);
    const heading = make("h2", { className: "unseen" }, "Answer");
    const parts = [this.waiting, this.thinking, this.text, this.calls, this.state, foot];
    this.element = make("article", { className: "answer" }, heading, ...parts);
    this.update();
  }

  // Shows the answer as it is now.
  update() {
    const answer = this.#answer;
    const coming = answer.status === "streaming";
    this.#updateThinking(coming);
    this.markdown.update(answer.content);
    this.text.hidden = !answer.content;
    this.#updateCalls();
    this.state.textContent = stateOf(answer);
    this.state.hidden = !this.state.textContent;
    this.state.classList.toggle("error", answer.status === "failed");
    this.element.classList.toggle("coming", coming);
    this.copy.hidden = coming || !answer.content || !navigator.clipboard;
    this.again.textContent = answer.status === "done" ? "Regenerate" : "Try again";
    this.again.classList.toggle("outlined", answer.status !== "done");
    this.again.hidden = coming || !this.isLast;
    this.tick();
  }

  // Shows what changes with time alone.
  tick() {
    const answer = this.#answer;
    const seconds = ((Date.now() - answer.startedAt) / 1000).toFixed(0);
    this.waiting.hidden = answer.status !== "streaming" || answer.firstMs !== null;
    this.waiting.textContent = `Waiting for the first token, ${seconds} s`;
    this.summary.textContent = thinkingTitle(answer);
    this.stats.replaceChildren(...readOut(answer).map((text) => make("span", {}, text)));
  }

  // Says whether this is the last message, which can be asked for again.
  setLast(isLast) {
    this.isLast = isLast;
    this.again.hidden = !isLast || this.#answer.status === "streaming";
  }

  // Shows the results of its calls: tool messages.
  setResults(messages) {
    this.#results = messages;
    this.#updateCalls();
  }

  focusResults() {
    this.calls.querySelector("textarea")?.focus();
  }

  #updateThinking(coming) {
    const { reasoning, thoughtToMs } = this.#answer;
    this.thinking.hidden = !reasoning;
    this.thought.append(reasoning.slice(this.#shownThinking));
    this.#shownThinking = reasoning.length;
    if ((thoughtToMs !== null || !coming) && !this.touched) this.thinking.open = false;
  }

  #updateCalls() {
    const { calls } = this.#answer;
    calls.forEach((call, index) => {
      if (!this.#calls[index]) this.calls.append((this.#calls[index] = new CallView()).element);
      this.#calls[index].update(call, this.#results.find((message) => message.callId === call.id));
    });
    const open = wantsResults(this.#answer) && !this.#results.length;
    this.#calls.forEach((view) => view.setOpen(open));
    this.calls.querySelector(":scope > button")?.remove();
    if (open) this.calls.append(make("button", { className: "primary" }, calls.length > 1 ? "Send results" : "Send result"));
  }

  #submit(event) {
    event.preventDefault();
    this.#actions.sendResults(this.#answer, this.#calls.map((view) => view.field.value));
  }

  async #copy() {
    const copied = await navigator.clipboard.writeText(this.#answer.content).then(() => true, () => false);
    this.copy.textContent = copied ? "Copied" : "Not allowed";
    setTimeout(() => (this.copy.textContent = "Copy"), 2000);
  }
}

// One call: its name, its arguments, and a field for its result or the result.
class CallView {
  constructor() {
    this.name = make("code", { className: "name" });
    this.arguments = make("pre", { tabIndex: 0 });
    this.field = make("textarea", { rows: 2, id: `result-${++fieldCount}`, spellcheck: false });
    this.label = make("label", { htmlFor: this.field.id });
    this.result = make("pre", { tabIndex: 0 });
    this.field.addEventListener("keydown", sendOnEnter);
    const title = make("h3", {}, "Tool call ", this.name);
    this.element = make("section", { className: "call" }, title, this.arguments, this.label, this.field, this.result);
  }

  update(call, result) {
    this.name.textContent = call.name;
    this.arguments.textContent = indented(call.arguments);
    this.label.textContent = result ? "Result" : `Result of ${call.name}`;
    this.result.textContent = result?.content || "(empty)";
    this.result.hidden = !result;
    this.field.hidden = Boolean(result);
  }

  setOpen(open) {
    this.field.hidden = !open;
    this.label.hidden = !open && this.result.hidden;
  }
}

// Submits the form of a field on Enter, but not on Shift+Enter or while a character is being composed.
export function sendOnEnter(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  event.target.form.requestSubmit();
}

// Indents JSON, unless that would change more than blanks (large numbers, keys that are there twice).
function indented(text) {
  try {
    const shown = JSON.stringify(JSON.parse(text), null, 2);
    return shown.replace(/\s/g, "") === text.replace(/\s/g, "") ? shown : text;
  } catch {
    return text; // not all of it has come yet
  }
}

function thinkingTitle({ status, thoughtFromMs, thoughtToMs, startedAt }) {
  if (thoughtFromMs === null) return "Thinking";
  if (thoughtToMs !== null) return `Thought for ${((thoughtToMs - thoughtFromMs) / 1000).toFixed(1)} s`;
  if (status !== "streaming") return "Thoughts";
  return `Thinking, ${((Date.now() - startedAt - thoughtFromMs) / 1000).toFixed(0)} s`;
}

function stateOf({ status, error, finish, content, calls }) {
  if (status === "failed") return error;
  if (status === "stopped") return "You stopped this answer.";
  if (status === "interrupted") return "This answer was interrupted.";
  if (status === "done" && finish === "length") return "This answer reached its greatest length.";
  return status === "done" && !content && !calls.length ? "This answer is empty." : "";
}
