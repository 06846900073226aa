"""One method per guard route. Made from the service's tables, not by hand: `UPDATE_DOCS=1 cargo test -p runguard-server --test generated_docs`."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

Answer = Dict[str, Any]


class GuardRoutes:
    """What every client can ask the guards. Fields that are None are left out; fields newer than this package are passed on."""

    def post(self, path: str, /, **body: Any) -> Answer:
        """Asks a guard."""
        raise NotImplementedError

    def ai_task_retry(
        self,
        session_id: str,
        task_name: str,
        user_message: Optional[str] = None,
        *,
        validation_error: Optional[str] = None,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """May this AI Task be run again after its output failed validation?"""
        return self.post(
            "/guard/ai-task-retry",
            session_id=session_id,
            task_name=task_name,
            user_message=user_message,
            validation_error=validation_error,
            request_id=request_id,
            **fields,
        )

    def handoff(
        self,
        session_id: str,
        source_bot: str,
        target_bot: str,
        *,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """May the conversation be handed to this bot?"""
        return self.post(
            "/guard/handoff",
            session_id=session_id,
            source_bot=source_bot,
            target_bot=target_bot,
            request_id=request_id,
            **fields,
        )

    def kb_requery(
        self,
        session_id: str,
        topic_hash: str,
        query_text: Optional[str] = None,
        *,
        last_confidence: Optional[float] = None,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """May the knowledge base be asked again? (The check counts.)"""
        return self.post(
            "/guard/kb-requery",
            session_id=session_id,
            topic_hash=topic_hash,
            query_text=query_text,
            last_confidence=last_confidence,
            request_id=request_id,
            **fields,
        )

    def kb_requery_check(
        self,
        session_id: str,
        query: str,
        prior_confidence: Optional[float] = None,
        *,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """May the knowledge base be asked? (The record counts.)"""
        return self.post(
            "/guard/kb-requery/check",
            session_id=session_id,
            query=query,
            prior_confidence=prior_confidence,
            request_id=request_id,
            **fields,
        )

    def kb_requery_record(
        self,
        session_id: str,
        query: str,
        confidence_score: float,
        retrieved_chunks: Optional[int] = None,
        *,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """What a knowledge base query gave. This counts."""
        return self.post(
            "/guard/kb-requery/record",
            session_id=session_id,
            query=query,
            confidence_score=confidence_score,
            retrieved_chunks=retrieved_chunks,
            request_id=request_id,
            **fields,
        )

    def agent_action(
        self,
        session_id: str,
        action_name: str,
        action_params_hash: Optional[str] = None,
        *,
        action_params: Any = None,
        goal: Optional[str] = None,
        available_actions: Optional[List[str]] = None,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """May the agent run this action?"""
        return self.post(
            "/guard/agent-action",
            session_id=session_id,
            action_name=action_name,
            action_params_hash=action_params_hash,
            action_params=action_params,
            goal=goal,
            available_actions=available_actions,
            request_id=request_id,
            **fields,
        )

    def agent_action_result(
        self,
        session_id: str,
        action_name: str,
        result_summary: Optional[str] = None,
        *,
        result_hash: Optional[str] = None,
        error: Optional[bool] = None,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """What the newest call of this action gave."""
        return self.post(
            "/guard/agent-action/result",
            session_id=session_id,
            action_name=action_name,
            result_summary=result_summary,
            result_hash=result_hash,
            error=error,
            request_id=request_id,
            **fields,
        )

    def no_match_reprompt(
        self,
        session_id: str,
        step_id: str,
        user_utterance: Optional[str] = None,
        *,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """May the user be asked again with a generated reprompt?"""
        return self.post(
            "/guard/no-match-reprompt",
            session_id=session_id,
            step_id=step_id,
            user_utterance=user_utterance,
            request_id=request_id,
            **fields,
        )

    def capture_slot_fill(
        self,
        session_id: str,
        capture_step: str,
        entity_type: str,
        user_utterance: Optional[str] = None,
        *,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """May a generated answer ask for this value again?"""
        return self.post(
            "/guard/capture-slot-fill",
            session_id=session_id,
            capture_step=capture_step,
            entity_type=entity_type,
            user_utterance=user_utterance,
            request_id=request_id,
            **fields,
        )

    def api_circuit_check(
        self,
        endpoint_key: str,
        session_id: str,
        *,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """May this session call the endpoint?"""
        return self.post(
            "/guard/api-circuit/check",
            endpoint_key=endpoint_key,
            session_id=session_id,
            request_id=request_id,
            **fields,
        )

    def api_circuit_record(
        self,
        endpoint_key: str,
        session_id: str,
        outcome: str,
        attempt: Optional[int] = None,
        *,
        status_code: Optional[int] = None,
        latency_ms: Optional[int] = None,
        permit_id: Optional[str] = None,
        retry_after_seconds: Optional[int] = None,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """How a call to the endpoint ended."""
        return self.post(
            "/guard/api-circuit/record",
            endpoint_key=endpoint_key,
            session_id=session_id,
            outcome=outcome,
            attempt=attempt,
            status_code=status_code,
            latency_ms=latency_ms,
            permit_id=permit_id,
            retry_after_seconds=retry_after_seconds,
            request_id=request_id,
            **fields,
        )

    def loop(
        self,
        session_id: str,
        tool: str,
        args: Any = None,
        *,
        repeats: Optional[int] = None,
        max_cycle_len: Optional[int] = None,
        window_seconds: Optional[int] = None,
        max_calls: Optional[int] = None,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """May this call be made, or does it complete a loop? An allowed call is counted."""
        return self.post(
            "/guard/loop",
            session_id=session_id,
            tool=tool,
            args=args,
            repeats=repeats,
            max_cycle_len=max_cycle_len,
            window_seconds=window_seconds,
            max_calls=max_calls,
            request_id=request_id,
            **fields,
        )

    def loop_check(
        self,
        session_id: str,
        tool: str,
        args: Any = None,
        *,
        repeats: Optional[int] = None,
        max_cycle_len: Optional[int] = None,
        window_seconds: Optional[int] = None,
        max_calls: Optional[int] = None,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """Would this call complete a loop? Nothing is counted."""
        return self.post(
            "/guard/loop/check",
            session_id=session_id,
            tool=tool,
            args=args,
            repeats=repeats,
            max_cycle_len=max_cycle_len,
            window_seconds=window_seconds,
            max_calls=max_calls,
            request_id=request_id,
            **fields,
        )

    def stall(
        self,
        session_id: str,
        tool: Optional[str] = None,
        *,
        args: Any = None,
        args_hash: Optional[str] = None,
        result: Any = None,
        result_hash: Optional[str] = None,
        error: Optional[str] = None,
        error_hash: Optional[str] = None,
        round: Optional[str] = None,
        does: Optional[str] = None,
        tokens: Optional[int] = None,
        message: Optional[str] = None,
        message_hash: Optional[str] = None,
        new_turn: Optional[bool] = None,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """This call gave this result: does the run still make progress?"""
        return self.post(
            "/guard/stall",
            session_id=session_id,
            tool=tool,
            args=args,
            args_hash=args_hash,
            result=result,
            result_hash=result_hash,
            error=error,
            error_hash=error_hash,
            round=round,
            does=does,
            tokens=tokens,
            message=message,
            message_hash=message_hash,
            new_turn=new_turn,
            request_id=request_id,
            **fields,
        )

    def agent_run(
        self,
        session_id: str,
        model: Optional[str] = None,
        *,
        steps: Optional[List[Dict[str, Any]]] = None,
        whole: Optional[bool] = None,
        tokens: Optional[int] = None,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """A model is about to be asked, and this is what the run did: does it still get anywhere?"""
        return self.post(
            "/guard/agent-run",
            session_id=session_id,
            model=model,
            steps=steps,
            whole=whole,
            tokens=tokens,
            request_id=request_id,
            **fields,
        )

    def budget_check(
        self,
        session_id: str,
        budget: Optional[str] = None,
        *,
        parent: Optional[str] = None,
        max_usd: Optional[float] = None,
        max_credits: Optional[float] = None,
        max_tokens: Optional[int] = None,
        cap: Optional[int] = None,
        scopes: Optional[List[Dict[str, Any]]] = None,
        usd: Optional[float] = None,
        credits: Optional[float] = None,
        tokens: Optional[int] = None,
        key: Optional[str] = None,
        model: Optional[str] = None,
        input_tokens: Optional[int] = None,
        output_tokens: Optional[int] = None,
        cached_tokens: Optional[int] = None,
        cache_write_tokens: Optional[int] = None,
        cache_write_1h_tokens: Optional[int] = None,
        audio_input_tokens: Optional[int] = None,
        audio_output_tokens: Optional[int] = None,
        service_tier: Optional[str] = None,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """Is there enough left for this? Nothing is counted."""
        return self.post(
            "/guard/budget/check",
            session_id=session_id,
            budget=budget,
            parent=parent,
            max_usd=max_usd,
            max_credits=max_credits,
            max_tokens=max_tokens,
            cap=cap,
            scopes=scopes,
            usd=usd,
            credits=credits,
            tokens=tokens,
            key=key,
            model=model,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached_tokens,
            cache_write_tokens=cache_write_tokens,
            cache_write_1h_tokens=cache_write_1h_tokens,
            audio_input_tokens=audio_input_tokens,
            audio_output_tokens=audio_output_tokens,
            service_tier=service_tier,
            request_id=request_id,
            **fields,
        )

    def budget_record(
        self,
        session_id: str,
        budget: Optional[str] = None,
        *,
        parent: Optional[str] = None,
        max_usd: Optional[float] = None,
        max_credits: Optional[float] = None,
        max_tokens: Optional[int] = None,
        cap: Optional[int] = None,
        scopes: Optional[List[Dict[str, Any]]] = None,
        usd: Optional[float] = None,
        credits: Optional[float] = None,
        tokens: Optional[int] = None,
        key: Optional[str] = None,
        model: Optional[str] = None,
        input_tokens: Optional[int] = None,
        output_tokens: Optional[int] = None,
        cached_tokens: Optional[int] = None,
        cache_write_tokens: Optional[int] = None,
        cache_write_1h_tokens: Optional[int] = None,
        audio_input_tokens: Optional[int] = None,
        audio_output_tokens: Optional[int] = None,
        service_tier: Optional[str] = None,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """This was spent. It counts, also when it passes the limit. A key without a cost asks for a call: blocked, it is not counted."""
        return self.post(
            "/guard/budget/record",
            session_id=session_id,
            budget=budget,
            parent=parent,
            max_usd=max_usd,
            max_credits=max_credits,
            max_tokens=max_tokens,
            cap=cap,
            scopes=scopes,
            usd=usd,
            credits=credits,
            tokens=tokens,
            key=key,
            model=model,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached_tokens,
            cache_write_tokens=cache_write_tokens,
            cache_write_1h_tokens=cache_write_1h_tokens,
            audio_input_tokens=audio_input_tokens,
            audio_output_tokens=audio_output_tokens,
            service_tier=service_tier,
            request_id=request_id,
            **fields,
        )

    def budget_reserve(
        self,
        session_id: str,
        budget: Optional[str] = None,
        *,
        parent: Optional[str] = None,
        max_usd: Optional[float] = None,
        max_credits: Optional[float] = None,
        max_tokens: Optional[int] = None,
        cap: Optional[int] = None,
        scopes: Optional[List[Dict[str, Any]]] = None,
        usd: Optional[float] = None,
        credits: Optional[float] = None,
        tokens: Optional[int] = None,
        key: Optional[str] = None,
        model: Optional[str] = None,
        input_tokens: Optional[int] = None,
        output_tokens: Optional[int] = None,
        cached_tokens: Optional[int] = None,
        cache_write_tokens: Optional[int] = None,
        cache_write_1h_tokens: Optional[int] = None,
        audio_input_tokens: Optional[int] = None,
        audio_output_tokens: Optional[int] = None,
        service_tier: Optional[str] = None,
        if_unsettled: Optional[str] = None,
        if_refused: Optional[str] = None,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """Set this aside for a step, if there is enough."""
        return self.post(
            "/guard/budget/reserve",
            session_id=session_id,
            budget=budget,
            parent=parent,
            max_usd=max_usd,
            max_credits=max_credits,
            max_tokens=max_tokens,
            cap=cap,
            scopes=scopes,
            usd=usd,
            credits=credits,
            tokens=tokens,
            key=key,
            model=model,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached_tokens,
            cache_write_tokens=cache_write_tokens,
            cache_write_1h_tokens=cache_write_1h_tokens,
            audio_input_tokens=audio_input_tokens,
            audio_output_tokens=audio_output_tokens,
            service_tier=service_tier,
            if_unsettled=if_unsettled,
            if_refused=if_refused,
            request_id=request_id,
            **fields,
        )

    def budget_commit(
        self,
        session_id: str,
        reservation_id: str,
        budget: Optional[str] = None,
        *,
        parent: Optional[str] = None,
        max_usd: Optional[float] = None,
        max_credits: Optional[float] = None,
        max_tokens: Optional[int] = None,
        cap: Optional[int] = None,
        scopes: Optional[List[Dict[str, Any]]] = None,
        usd: Optional[float] = None,
        credits: Optional[float] = None,
        tokens: Optional[int] = None,
        key: Optional[str] = None,
        model: Optional[str] = None,
        input_tokens: Optional[int] = None,
        output_tokens: Optional[int] = None,
        cached_tokens: Optional[int] = None,
        cache_write_tokens: Optional[int] = None,
        cache_write_1h_tokens: Optional[int] = None,
        audio_input_tokens: Optional[int] = None,
        audio_output_tokens: Optional[int] = None,
        service_tier: Optional[str] = None,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """The step is done and cost this much; without a cost, what was reserved."""
        return self.post(
            "/guard/budget/commit",
            session_id=session_id,
            reservation_id=reservation_id,
            budget=budget,
            parent=parent,
            max_usd=max_usd,
            max_credits=max_credits,
            max_tokens=max_tokens,
            cap=cap,
            scopes=scopes,
            usd=usd,
            credits=credits,
            tokens=tokens,
            key=key,
            model=model,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached_tokens,
            cache_write_tokens=cache_write_tokens,
            cache_write_1h_tokens=cache_write_1h_tokens,
            audio_input_tokens=audio_input_tokens,
            audio_output_tokens=audio_output_tokens,
            service_tier=service_tier,
            request_id=request_id,
            **fields,
        )

    def budget_release(
        self,
        session_id: str,
        reservation_id: str,
        budget: Optional[str] = None,
        *,
        parent: Optional[str] = None,
        max_usd: Optional[float] = None,
        max_credits: Optional[float] = None,
        max_tokens: Optional[int] = None,
        cap: Optional[int] = None,
        scopes: Optional[List[Dict[str, Any]]] = None,
        model: Optional[str] = None,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """The step was not done: what was reserved is free again."""
        return self.post(
            "/guard/budget/release",
            session_id=session_id,
            reservation_id=reservation_id,
            budget=budget,
            parent=parent,
            max_usd=max_usd,
            max_credits=max_credits,
            max_tokens=max_tokens,
            cap=cap,
            scopes=scopes,
            model=model,
            request_id=request_id,
            **fields,
        )

    def tool_call(
        self,
        session_id: str,
        tool: str,
        turn_id: Optional[str] = None,
        *,
        args: Any = None,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """Should this tool be run, or has it given already what it can? An allowed call is counted."""
        return self.post(
            "/guard/tool-call",
            session_id=session_id,
            tool=tool,
            turn_id=turn_id,
            args=args,
            request_id=request_id,
            **fields,
        )

    def tool_call_record(
        self,
        session_id: str,
        tool: str,
        turn_id: Optional[str] = None,
        *,
        args: Any = None,
        error: Optional[bool] = None,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """How the call ended. One that failed may be made again, up to the tool's limit."""
        return self.post(
            "/guard/tool-call/record",
            session_id=session_id,
            tool=tool,
            turn_id=turn_id,
            args=args,
            error=error,
            request_id=request_id,
            **fields,
        )

    def action_group(
        self,
        session_id: str,
        action_group: str,
        api_path: Optional[str] = None,
        *,
        http_method: Optional[str] = None,
        function: Optional[str] = None,
        parameters: Any = None,
        request_body: Any = None,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """May this action be run, or has the same call failed for good?"""
        return self.post(
            "/guard/action-group",
            session_id=session_id,
            action_group=action_group,
            api_path=api_path,
            http_method=http_method,
            function=function,
            parameters=parameters,
            request_body=request_body,
            request_id=request_id,
            **fields,
        )

    def action_group_result(
        self,
        session_id: str,
        action_group: str,
        failed: bool,
        api_path: Optional[str] = None,
        *,
        http_method: Optional[str] = None,
        function: Optional[str] = None,
        parameters: Any = None,
        request_body: Any = None,
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Answer:
        """Whether the action succeeded."""
        return self.post(
            "/guard/action-group/result",
            session_id=session_id,
            action_group=action_group,
            failed=failed,
            api_path=api_path,
            http_method=http_method,
            function=function,
            parameters=parameters,
            request_body=request_body,
            request_id=request_id,
            **fields,
        )
