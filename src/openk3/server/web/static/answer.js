// One answer as data: how the frames of a stream add up to it, what it cost, and how it goes back to the server.

const LEAST_SECONDS = 0.1; // less says nothing about speed

// Makes an answer that is about to come.
export function newAnswer(model) {
  return {
    id: crypto.randomUUID?.() ?? String(Math.random()).slice(2), // randomUUID is missing on plain http
    role: "assistant",
    status: "streaming", // then: done, stopped, failed or, after a reload, interrupted
    model,
    content: "",
    reasoning: "",
    calls: [],
    finish: null,
    error: null,
    usage: null,
    startedAt: Date.now(),
    firstMs: null, // until the first token, and all others, from the start
    firstCount: 1, // tokens that came with the first
    lastMs: null,
    thoughtFromMs: null,
    thoughtToMs: null,
  };
}

// Adds one frame, which came at `now`.
export function addFrame(answer, frame, now = Date.now()) {
  const choice = frame.choices?.[0];
  const delta = choice?.delta ?? {};
  const usage = frame.usage ?? choice?.usage;
  if (usage) answer.usage = countsOf(usage);
  if (choice?.finish_reason) answer.finish = choice.finish_reason;
  if (delta.reasoning_content || delta.content || delta.tool_calls) addDelta(answer, delta, now - answer.startedAt);
}

function addDelta(answer, delta, ms) {
  if (answer.firstMs === null) {
    answer.firstMs = ms;
    answer.firstCount = answer.usage?.output || 1;
  }
  answer.lastMs = ms;
  if (delta.reasoning_content) answer.thoughtFromMs ??= ms;
  else endThinking(answer, ms);
  answer.reasoning += delta.reasoning_content ?? "";
  answer.content += delta.content ?? "";
  for (const call of delta.tool_calls ?? []) addCall(answer.calls, call);
}

function addCall(calls, added) {
  const call = (calls[added.index] ??= { id: "", name: "", arguments: "" });
  call.id ||= added.id ?? "";
  call.name ||= added.function?.name ?? "";
  call.arguments += added.function?.arguments ?? "";
}

function endThinking(answer, ms) {
  if (answer.thoughtFromMs !== null) answer.thoughtToMs ??= ms;
}

// Ends an answer with `status`; `error` is a text for the reader.
export function endAnswer(answer, status, error = null) {
  endThinking(answer, answer.lastMs);
  answer.calls = answer.calls.filter(Boolean);
  answer.status = status;
  answer.error = error;
}

function countsOf(usage) {
  return {
    prompt: usage.prompt_tokens ?? 0,
    cached: usage.prompt_tokens_details?.cached_tokens ?? usage.cached_tokens ?? 0,
    output: usage.completion_tokens ?? 0,
    reasoning: usage.completion_tokens_details?.reasoning_tokens ?? 0,
  };
}

// Says what an answer cost and how fast it came, as a list of texts; empty when nothing is known yet.
export function readOut(answer) {
  const texts = [];
  const { usage } = answer;
  if (usage) {
    texts.push(`${count(usage.prompt)} prompt tokens (${count(usage.cached)} cached)`);
    texts.push(`${count(usage.output)} output (${count(usage.reasoning)} reasoning)`);
    const seconds = (answer.lastMs - answer.firstMs) / 1000;
    const counted = usage.output - answer.firstCount;
    if (counted > 0 && seconds >= LEAST_SECONDS) texts.push(`${(counted / seconds).toFixed(1)} tokens/s`);
  }
  if (answer.firstMs !== null) texts.push(`first token ${(answer.firstMs / 1000).toFixed(2)} s`);
  return texts;
}

export function count(number) {
  return number.toLocaleString("en");
}

// Tells whether an answer waits for the results of its calls.
export function wantsResults(answer) {
  return answer?.role === "assistant" && answer.status === "done" && answer.calls.length > 0;
}

// Returns the body of a request for the next answer.
export function requestBody(messages, settings, tools) {
  const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  return {
    model: settings.model,
    messages: [...system, ...messages.flatMap(asSent)],
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
    ...(settings.effort === "off" ? { thinking: { type: "disabled" } } : { reasoning_effort: settings.effort }),
    ...(tools.length ? { tools } : {}),
  };
}

function asSent(message) {
  if (message.role === "user") return [{ role: "user", content: message.content }];
  if (message.role === "tool") return [{ role: "tool", tool_call_id: message.callId, content: message.content }];
  const calls = message.status === "done" ? message.calls : []; // those of a broken answer may be cut off
  if (!message.content && !message.reasoning && !calls.length) return [];
  const sent = { role: "assistant", content: message.content };
  if (message.reasoning) sent.reasoning_content = message.reasoning;
  if (calls.length) {
    const functionOf = (call) => ({ name: call.name, arguments: call.arguments });
    sent.tool_calls = calls.map((call) => ({ id: call.id, type: "function", function: functionOf(call) }));
  }
  return [sent];
}
