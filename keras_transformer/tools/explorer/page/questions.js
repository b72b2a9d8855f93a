// Requests to the explorer's server, at addresses below the page's own, which holds the token.

const STOPPED =
  "The explorer does not answer: it was stopped or has crashed. Start keras-transformer explore " +
  "again and open the address that it prints.";

export async function ask(question, request = {}) {
  let response;
  try {
    response = await fetch(`ask/${question}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(request),
    });
  } catch {
    throw new Error(STOPPED);
  }
  let answer;
  try {
    answer = await response.json();
  } catch {
    throw new Error(`The explorer answers with status ${response.status} and no JSON.`);
  }
  if (!response.ok) throw new Error(answer.error ?? `The explorer answers ${response.status}.`);
  return answer;
}

// Sends one request at a time. Of the requests made meanwhile, only the latest is sent, and the
// answers to older ones are dropped: a slow model need not answer for every letter typed.
export class Latest {
  constructor(question, { answered, failed }) {
    this.question = question;
    this.answered = answered;
    this.failed = failed;
    this.number = 0; // of the latest request or cancellation
    this.waiting = null;
    this.busy = false;
  }

  ask(request) {
    this.number += 1;
    this.waiting = request;
    if (!this.busy) this.sendAll();
  }

  cancel() {
    this.number += 1;
    this.waiting = null;
  }

  async sendAll() {
    this.busy = true;
    while (this.waiting !== null) {
      const [request, number] = [this.waiting, this.number];
      this.waiting = null;
      try {
        const answer = await ask(this.question, request);
        if (number === this.number) this.answered(answer, request);
      } catch (error) {
        if (number === this.number) this.failed(error);
      }
    }
    this.busy = false;
  }
}
